# Makes the tables of results, in Markdown. The arguments are kernels, whose results
# are in cache/KERNEL/results: the output of test binaries with -test.v, between
# lines of their own. A test attribute has a row: "outcome" in the
# first table, "instructions" in the second. Ends with 1 unless all is well.

function set(table, name, what) {
	if (!((table, name) in known)) {
		known[table, name] = 1
		rows[table, ++n_rows[table]] = name
	}
	cell[table, name, kernel] = what
}

# The name of a test as a row has it.
function name_of(test) {
	gsub(/_/, " ", test)
	sub(/^TestVariants\//, "", test)
	sub(/^Test/, "", test)
	return test
}

function print_row(name, cells, width, j) {
	printf "| %-" width "s |", name
	for (j = 1; j < ARGC; j++)
		printf " %20s |", cells[j]
	print ""
}

# Rows of tests are in the order in which the tests began, whatever the order in which
# those that run at the same time end.
function sort_rows(table, i, n) {
	for (i = 1; i <= n_tests; i++)
		if ((table, tests[i]) in known)
			rows[table, ++n] = tests[i]
}

function print_table(title, table, width, i, j, cells) {
	width = 10
	for (i = 1; i <= n_rows[table]; i++)
		if (length(rows[table, i]) > width)
			width = length(rows[table, i])
	print title "\n"
	for (j = 1; j < ARGC; j++) {
		cells[j] = ARGV[j]
		sub(/-cloud-amd64$/, "", cells[j])
		sub(/-cloud-/, " ", cells[j])
	}
	print_row("", cells, width)
	for (j = 1; j < ARGC; j++)
		cells[j] = "---:"
	print_row("---", cells, width)
	for (i = 1; i <= n_rows[table]; i++) {
		for (j = 1; j < ARGC; j++)
			cells[j] = (table, rows[table, i], ARGV[j]) in cell ? cell[table, rows[table, i], ARGV[j]] : "–"
		print_row(rows[table, i], cells, width)
	}
	print ""
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
	while ((getline line < file) > 0) {
		split(line, field, " ")
		if (line ~ /^suite /) {
			suite = field[2]
			passed = failed = skipped = 0
			running = ""
		} else if (line ~ /^exit /) {
			value = failed || field[3] != 0 ? "FAIL" : "ok"
			value = value " (" passed (skipped ? ", " skipped " skipped" : "") (failed ? ", " failed " failed" : "") ")"
			set("tests", suite, value)
			if (value ~ /^FAIL/ && !failed)
				complain(kernel ": " suite " ended with " field[3] " in " running log_of[running])
		} else if (line == "end") {
			ended = 1
		} else if (line ~ /^=== (RUN|CONT|NAME) /) {
			running = field[3]
			if (field[2] == "RUN" && !((test = name_of(running)) in begun)) {
				begun[test] = 1
				tests[++n_tests] = test
			}
		} else if (line ~ /^=== ATTR /) {
			set(field[4], name_of(field[3]), field[5])
		} else if (line ~ /^ *--- (PASS|FAIL|SKIP): /) {
			test = field[3]
			if (field[2] == "SKIP:")
				skipped++
			else if (field[2] == "PASS:")
				passed++
			else {
				failed++
				complain(kernel ": " test log_of[test])
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
	if (!ended)
		complain(kernel ": " (status == 124 ? "not done after " seconds " s" : "the guest ended early") \
			(running == "" ? "" : ", in " running) ": see " cache "/" kernel "/console")
	set("tests", "seconds", seconds)
}

BEGIN {
	for (i = 1; i < ARGC; i++) {
		kernel = ARGV[i]
		read_results(cache "/" kernel "/results")
	}
	sort_rows("outcome")
	sort_rows("instructions")
	print_table("What works:", "outcome")
	print_table("Instructions that the verifier walks, of a million that it walks at most:", "instructions")
	print_table("Tests that passed, in a guest of two emulated processors:", "tests")
	for (i = 1; i <= n_complaints; i++)
		print complaints[i]
	exit n_complaints > 0
}
