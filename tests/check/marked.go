package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// marked prints a line for each test that makes all of the calls, or uses what does: its
// package and its name. A call is a package's import path and an identifier, as in
// weir/tests/timed.Alone, or the path alone for any of its identifiers.
func marked(calls []string) error {
	if len(calls) == 0 {
		return errors.New("marked: want a call, as in weir/tests/timed.Alone")
	}
	files, err := tests(".")
	if err != nil {
		return err
	}
	for _, dir := range slices.Sorted(maps.Keys(files)) {
		for _, test := range usingAll(files[dir], calls) {
			fmt.Printf("./%s %s\n", dir, test)
		}
	}
	return nil
}

// tests parses the files of tests below a directory, and returns them by directory.
func tests(root string) (map[string][]*ast.File, error) {
	files := make(map[string][]*ast.File)
	set := token.NewFileSet()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && file != root && (d.Name() == "dist" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		files[dir] = append(files[dir], parsed)
		return err
	})
	return files, err
}

// usingAll returns the tests in the files of one package that use all of the calls.
func usingAll(files []*ast.File, calls []string) []string {
	var tests []string
	for i, call := range calls {
		pkg, name := call, ""
		if dot := strings.LastIndexByte(call, '.'); dot > strings.LastIndexByte(call, '/') {
			pkg, name = call[:dot], call[dot+1:]
		}
		found := using(files, pkg, name)
		if i == 0 {
			tests = found
		}
		tests = slices.DeleteFunc(tests, func(t string) bool { return !slices.Contains(found, t) })
	}
	return tests
}

// using returns the tests in the files of one package that use an identifier of another
// package, directly or by their other declarations.
func using(files []*ast.File, pkg, name string) []string {
	uses := make(map[string]map[string]bool) // what each declaration names; "" is the identifier
	for _, f := range files {
		local := ""
		for _, i := range f.Imports {
			if strings.Trim(i.Path.Value, `"`) == pkg {
				local = path.Base(pkg)
				if i.Name != nil {
					local = i.Name.Name
				}
			}
		}
		for _, d := range f.Decls {
			names, nodes := declared(d)
			for i, n := range names {
				if uses[n] == nil {
					uses[n] = make(map[string]bool)
				}
				ast.Inspect(nodes[i], func(node ast.Node) bool {
					switch node := node.(type) {
					case *ast.SelectorExpr:
						if x, ok := node.X.(*ast.Ident); ok && local != "" && x.Name == local && (name == "" || node.Sel.Name == name) {
							uses[n][""] = true
						}
					case *ast.Ident:
						uses[n][node.Name] = true
					}
					return true
				})
			}
		}
	}
	found := map[string]bool{"": true}
	for changed := true; changed; {
		changed = false
		for n, of := range uses {
			for u := range of {
				if found[u] && !found[n] {
					found[n], changed = true, true
				}
			}
		}
	}
	var tests []string
	for n := range found {
		if strings.HasPrefix(n, "Test") && n != "TestMain" {
			tests = append(tests, n)
		}
	}
	slices.Sort(tests)
	return tests
}

// declared returns the names of a declaration of functions, variables or constants, and the
// nodes that they stand for.
func declared(d ast.Decl) (names []string, nodes []ast.Node) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return []string{d.Name.Name}, []ast.Node{d}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				for _, n := range v.Names {
					names, nodes = append(names, n.Name), append(nodes, v)
				}
			}
		}
	}
	return names, nodes
}
