# Makes the table of results. The arguments are kernels, whose results are in
# cache/KERNEL/results: the output of test binaries with -test.v, between
# lines of their own. Ends with 1 unless all is well.

function row(name) {
	if (!(name in known)) {
		known[name] = 1
		rows[++n_rows] = name
	}
}

function set(name, what) {
	row(name)
	cell[name, kernel] = what
}

function complain(text) {
	complaints[++n_complaints] = text
}

# A line that a test has logged, under the test that it belongs to.
function keep(test, line) {
	if (logged[test]++ < 3)
		log_of[test] = log_of[test] "\n        " substr(line, 1, 300)
}

function read_results(file, line, field, suite, test, value, ended, running, status, seconds) {
	delete logged
	delete log_of
	ended = 0
	n_suites = 0
	while ((getline line < file) > 0) {
		split(line, field, " ")
		if (line ~ /^suite /) {
			suite = field[2]
			passed = failed = skipped = 0
			running = ""
		} else if (line ~ /^exit /) {
			value = failed || field[3] != 0 ? "FAIL" : "ok"
			value = value " (" passed (skipped ? ", " skipped " skipped" : "") (failed ? ", " failed " failed" : "") ")"
			set("tests: " suite, value)
			if (value ~ /^FAIL/ && !failed)
				complain(kernel ": " suite " ended with " field[3] " in " running log_of[running])
			ended++
		} else if (line ~ /^=== (RUN|CONT|NAME) /) {
			running = field[3]
		} else if (line ~ /^=== ATTR /) {
			test = field[3]
			attribute[test] = field[5]
			value = field[5]
			sub(/^TestVariants\//, "", test)
			set(test, value)
		} else if (line ~ /^ *--- (PASS|FAIL|SKIP): /) {
			test = field[3]
			if (field[2] == "SKIP:")
				skipped++
			else if (field[2] == "PASS:")
				passed++
			else {
				failed++
				complain(kernel ": " test log_of[test])
				sub(/^TestVariants\//, "", test)
				if (field[3] ~ /\// && suite == "kernels")
					set(test, "FAIL")
			}
		} else if (line ~ /_test.go:[0-9]+: |^panic: /) {
			keep(running, line)
		}
	}
	close(file)
	getline status < (cache "/" kernel "/status")
	close(cache "/" kernel "/status")
	getline seconds < (cache "/" kernel "/seconds")
	close(cache "/" kernel "/seconds")
	if (ended < 3)
		complain(kernel ": " (status == 124 ? "not done after " limit " s" : "the guest ended early") \
			(running == "" ? "" : ", in " running) ": see " cache "/" kernel "/console")
	set("seconds", seconds)
}

BEGIN {
	for (i = 1; i < ARGC; i++) {
		kernel = ARGV[i]
		read_results(cache "/" kernel "/results")
	}
	width = 24
	for (i = 1; i <= n_rows; i++)
		if (length(rows[i]) > width)
			width = length(rows[i])
	print "Instructions that the verifier walks, the most of all policies:"
	print ""
	printf "%-" width "s", ""
	for (i = 1; i < ARGC; i++) {
		name = ARGV[i]
		sub(/-cloud-amd64$/, "", name)
		printf "  %16s", name
	}
	print ""
	for (i = 1; i <= n_rows; i++) {
		printf "%-" width "s", rows[i]
		for (j = 1; j < ARGC; j++)
			printf "  %16s", (rows[i], ARGV[j]) in cell ? cell[rows[i], ARGV[j]] : "-"
		print ""
	}
	for (i = 1; i <= n_complaints; i++)
		print (i == 1 ? "\n" : "") complaints[i]
	exit n_complaints > 0
}
