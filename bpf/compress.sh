#!/bin/sh
# Compresses the objects, which would be 3 % of weir's binary, and lets the generated Go read
# them compressed.
set -eu
gzip -9nf ./*_bpfe[lb].o
sed -i 's|^\(//go:embed .*\.o\)$|\1.gz|; s|bytes\.NewReader(\(_[A-Za-z]*Bytes\))|object(\1)|; /^\t"bytes"$/d' ./*_bpfe[lb].go
