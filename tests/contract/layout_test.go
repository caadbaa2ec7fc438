package contract

import (
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"weir/bpf"
	"weir/filter/blocked"
	"weir/filter/cascade"
	"weir/filter/digest"
	"weir/filter/fpr"
	"weir/filter/icarus"
	"weir/filter/invariant"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
)

func objectTypes(t *testing.T) *btf.Spec {
	t.Helper()
	spec, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	return spec.Types
}

// plain is a member's name in either language.
func plain(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// fields returns the fields of a Go struct that have a counterpart in C.
func fields(g reflect.Type) []reflect.StructField {
	var all []reflect.StructField
	for f := range g.Fields() {
		if f.Name != "_" {
			all = append(all, f)
		}
	}
	return all
}

// compareLayout says where a type in C, of the object's BTF, is laid out
// otherwise than one in Go.
func compareLayout(t *testing.T, path string, c btf.Type, g reflect.Type) {
	t.Helper()
	c = btf.UnderlyingType(c)
	size, err := btf.Sizeof(c)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if size != int(g.Size()) {
		t.Errorf("%s: %d bytes in C, %d in Go", path, size, g.Size())
		return
	}
	switch c := c.(type) {
	case *btf.Struct:
		if g.Kind() != reflect.Struct {
			t.Errorf("%s: a struct in C, %v in Go", path, g)
			return
		}
		members := fields(g)
		if len(members) != len(c.Members) {
			t.Errorf("%s: %d members in C, %d in Go", path, len(c.Members), len(members))
			return
		}
		for i, m := range c.Members {
			f := members[i]
			if plain(m.Name) != plain(f.Name) || m.Offset.Bytes() != uint32(f.Offset) {
				t.Errorf("%s: member %s at %d in C, %s at %d in Go", path, m.Name, m.Offset.Bytes(), f.Name, f.Offset)
				continue
			}
			compareLayout(t, path+"."+m.Name, m.Type, f.Type)
		}
	case *btf.Array:
		if g.Kind() != reflect.Array || g.Len() != int(c.Nelems) {
			t.Errorf("%s: %d elements in C, %v in Go", path, c.Nelems, g)
			return
		}
		compareLayout(t, path+"[]", c.Type, g.Elem())
	case *btf.Int:
		signed := g.Kind() >= reflect.Int && g.Kind() <= reflect.Int64
		if (c.Encoding == btf.Signed) != signed {
			t.Errorf("%s: %v in C, %v in Go", path, c, g)
		}
	}
}

func TestLayouts(t *testing.T) {
	types := objectTypes(t)
	for name, g := range map[string]reflect.Type{
		"shape":           reflect.TypeFor[loader.Shape](),
		"key_set":         reflect.TypeFor[loader.KeySet](),
		"quotient":        reflect.TypeFor[loader.Quotient](),
		"prefix_length":   reflect.TypeFor[bpf.WeirPrefixLength](),
		"failsafe":        reflect.TypeFor[loader.Failsafe](),
		"failsafe_port":   reflect.TypeFor[bpf.WeirFailsafePort](),
		"failsafe_prefix": reflect.TypeFor[bpf.WeirFailsafePrefix](),
		"counter":         reflect.TypeFor[loader.Counter](),
		"cpu_row":         reflect.TypeFor[bpf.WeirCpuRow](),
		"tracker":         reflect.TypeFor[loader.Tracker](),
		"packet":          reflect.TypeFor[loader.Packet](),
		"event":           reflect.TypeFor[bpf.WeirEvent](),
		"digests":         reflect.TypeFor[bpf.WeirDigests](),
		"digest_bank":     reflect.TypeFor[bpf.WeirDigestBank](),
		"sighting":        reflect.TypeFor[bpf.WeirSighting](),
		"sampling":        reflect.TypeFor[bpf.WeirSampling](),
		"loop_config":     reflect.TypeFor[bpf.WeirLoopConfig](),
		"loop_row":        reflect.TypeFor[bpf.WeirLoopRow](),
		"multicast_row":   reflect.TypeFor[bpf.WeirMulticastRow](),
		"multicast_port":  reflect.TypeFor[bpf.WeirMulticastPort](),

		"multicast_filters": reflect.TypeFor[bpf.WeirMulticastFilters](),
		// Map values as defined by the Go twins.
		"line": reflect.TypeFor[struct {
			Words [cascade.LineWords]uint64
		}](),
		"bucket": reflect.TypeFor[struct {
			Slots [membership.BucketSlots]uint64
		}](),
	} {
		var c *btf.Struct
		if err := types.TypeByName(name, &c); err != nil {
			t.Errorf("struct %s: %v", name, err)
			continue
		}
		compareLayout(t, name, c, g)
	}
}

// Reasons have the same numbers and names in C, in Go and in the user
// interface.
func TestReasons(t *testing.T) {
	var reasons *btf.Enum
	if err := objectTypes(t).TypeByName("reason", &reasons); err != nil {
		t.Fatal(err)
	}
	if len(reasons.Values) != int(verdict.NumReasons)+1 {
		t.Fatalf("%d reasons and their number in C, %d in Go", len(reasons.Values), verdict.NumReasons)
	}
	for i, v := range reasons.Values {
		if v.Value != uint64(i) {
			t.Errorf("%s is %d, want %d", v.Name, v.Value, i)
		}
		label := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(v.Name, "REASON_"), "_", "-"))
		if i == int(verdict.NumReasons) {
			if label != "count" {
				t.Errorf("the last of the reasons is %s", v.Name)
			}
		} else if got := verdict.Reason(i).String(); got != label {
			t.Errorf("%s is called %q in Go", v.Name, got)
		}
	}
}

// So have the outcomes of loop filters.
func TestLoopOutcomes(t *testing.T) {
	var outcomes *btf.Enum
	if err := objectTypes(t).TypeByName("loop_outcome", &outcomes); err != nil {
		t.Fatal(err)
	}
	if len(outcomes.Values) != int(icarus.NumOutcomes)+1 {
		t.Fatalf("%d outcomes and their number in C, %d in Go", len(outcomes.Values), icarus.NumOutcomes)
	}
	for i, v := range outcomes.Values[:icarus.NumOutcomes] {
		label := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(v.Name, "LOOP_"), "_", "-"))
		if got := icarus.Outcome(i).String(); v.Value != uint64(i) || got != label {
			t.Errorf("%s is %d, and %q in Go", v.Name, v.Value, got)
		}
	}
}

// macros reads the constants of the headers, which BTF does not have.
func macros(t *testing.T) map[string]uint64 {
	t.Helper()
	define := regexp.MustCompile(`(?m)^#define (\w+)[ \t]+(.*?)(?:\s*/\*.*)?$`)
	suffix := regexp.MustCompile(`\b(0x[0-9a-fA-F]+|\d+)U?L*\b`)
	headers, err := filepath.Glob("../../bpf/*.h")
	if err != nil || len(headers) == 0 {
		t.Fatalf("no headers: %v", err)
	}
	found := make(map[string]uint64)
	for _, h := range headers {
		text, err := os.ReadFile(h)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range define.FindAllStringSubmatch(string(text), -1) {
			// C's constant expressions are Go's, but for the suffixes.
			v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, suffix.ReplaceAllString(m[2], "$1"))
			if err != nil || v.Value == nil {
				continue
			}
			if n, ok := constant.Uint64Val(v.Value); ok {
				found[m[1]] = n
			}
		}
	}
	return found
}

func TestConstants(t *testing.T) {
	c := macros(t)
	for name, want := range map[string]uint64{
		"FIELD_V6":          uint64(key.FieldV6),
		"FIELD_SRC_PORT":    uint64(key.FieldSrcPort),
		"FIELD_DST_PORT":    uint64(key.FieldDstPort),
		"FIELD_PROTO":       uint64(key.FieldProto),
		"MAX_SHAPES":        membership.MaxShapes,
		"LINE_WORDS":        cascade.LineWords,
		"LINE_BITS_MAX":     cascade.MaxLineBits,
		"REST_LINES":        fpr.MaxFurther,
		"BUCKET_SLOTS":      membership.BucketSlots,
		"GATE_ALWAYS":       uint64(membership.GateAlways),
		"GATE_SRC":          uint64(membership.GateSrc),
		"GATE_DST":          uint64(membership.GateDst),
		"QUOTIENT_KEY_BITS": uint64(loader.QuotientKeyBits),
		"MARK4_WORDS":       uint64(len(membership.NewMarks4())),
		"MAX_FAILSAFE":      verdict.MaxFailsafe,
		"KIND_OTHER":        uint64(packet.OtherICMP),
		"KIND_ERROR":        uint64(packet.ICMPError),
		"KIND_ECHO_REQUEST": uint64(packet.EchoRequest),
		"KIND_ECHO_REPLY":   uint64(packet.EchoReply),
		"MAX_VLAN_TAGS":     packet.MaxVLANTags,
		"MAX_EXT_HEADERS":   packet.MaxExtHeaders,
		"MAX_EXT_BYTES":     packet.MaxExtBytes,
		"MAX_TRACKERS":      loader.MaxTrackers,
		"EVENT_FRAME":       uint64(loader.EventFrame),
		"LOOP_WORDS":        uint64(slices.Max(icarus.Sizes) / 64),
		"LOOP_TYPE_V4":      icarus.TypeV4,
		"LOOP_TYPE_V6":      icarus.TypeV6,
		"GATHERED":          uint64(gathered),
		"SIGHTINGS":         digest.Sightings,
		"LOOP_FALLS":        digest.LoopFalls,
		"INVARIANT_V4":      invariant.LenV4,
		"INVARIANT_V6":      invariant.LenV6,
	} {
		if got, ok := c[name]; !ok || got != want {
			t.Errorf("%s is %d (%t) in C, %d in Go", name, got, ok, want)
		}
	}
	if got := uint64(1)<<(64-c["LIST_SHIFT"]) - 1; got != membership.MaxList {
		t.Errorf("a slot has room for lists up to %d in C, up to %d in Go", got, membership.MaxList)
	}
	if c["FINGERPRINT_MASK"] != 1<<c["LIST_SHIFT"]-1 {
		t.Errorf("fingerprint %#x and list at bit %d overlap, or leave a gap", c["FINGERPRINT_MASK"], c["LIST_SHIFT"])
	}
	if blocked.MaxBits != cascade.MaxLineBits {
		t.Errorf("%d bits in a line at most, not %d", blocked.MaxBits, cascade.MaxLineBits)
	}
	if cascade.LineBits != 64*cascade.LineWords || fpr.LineBits != cascade.LineBits {
		t.Errorf("lines of %d bits, predicted for %d", cascade.LineBits, fpr.LineBits)
	}
	if fpr.MaxRest != cascade.MaxLineBits || fpr.ExactFirst != membership.ExactBits {
		t.Errorf("rates are predicted for %d and %d bits in a line, not %d and %d",
			fpr.MaxRest, fpr.ExactFirst, cascade.MaxLineBits, membership.ExactBits)
	}
}

// The loader duplicates some constants; their effect is visible.
func TestLoaderConstants(t *testing.T) {
	lab.Root(t)
	c := macros(t)
	for gate, want := range map[uint64]uint64{
		c["GATE_ALWAYS"]: 0, c["GATE_SRC"]: c["MARK4_WORDS"], c["GATE_DST"]: 2 * c["MARK4_WORDS"],
	} {
		set := loader.KeySet{Lines: 1, First: uint32(c["LINE_BITS_MAX"]), GatesV4: uint32(gate), N_v4: 1}
		set.V4[0].Gate = uint32(gate)
		g, err := loader.NewGeneration(loader.Config{Block: set})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(g.Block().Marks4); got != int(want) {
			t.Errorf("%d words of marks for gate %d, want %d", got, gate, want)
		}
		g.Close()
	}
	set := loader.KeySet{Lines: 1, First: uint32(c["LINE_BITS_MAX"] + 1)}
	if g, err := loader.NewGeneration(loader.Config{Block: set}); err == nil {
		g.Close()
		t.Error("more bits than the program tests in a line are accepted")
	}
}
