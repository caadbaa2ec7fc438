package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"weir/control/quantity"
	"weir/loader/netif"
)

// Diff returns a line for each difference between two configurations. Secrets are
// not shown.
func Diff[C Config | Hub](old, new *C) []string {
	var d differences
	d.compare(reflect.ValueOf(old).Elem(), reflect.ValueOf(new).Elem(), "", false)
	return d.lines
}

// labelled is an element that is identified by its label, not by its index.
type labelled interface{ Label() string }

// Label returns the interface and its namespace.
func (i Interface) Label() string { return netif.Target{Netns: i.Netns, Iface: i.Name}.String() }

// Label returns the name.
func (l List) Label() string { return l.Name }

// Label returns the name.
func (r ListRollout) Label() string { return r.Name }

type differences struct{ lines []string }

func (d *differences) addf(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// compare compares values at a path. An optional value is absent when it is zero.
func (d *differences) compare(old, new reflect.Value, path string, optional bool) {
	t := old.Type()
	switch {
	case isText(t):
		d.values(old, new, path, optional)
	case optional && t.Kind() == reflect.Struct && old.IsZero() != new.IsZero():
		d.addf("%s: %s", path, map[bool]string{true: "added", false: "removed"}[old.IsZero()])
	case t.Kind() == reflect.Struct:
		for _, f := range fields(t) {
			if !f.isKey {
				d.compare(old.FieldByIndex(f.index), new.FieldByIndex(f.index), Join(path, f.name), f.omitEmpty)
			}
		}
	case t.Kind() == reflect.Slice && t.Elem().Implements(reflect.TypeFor[labelled]()):
		d.elements(old, new, path)
	default:
		d.values(old, new, path, optional)
	}
}

// values compares values that are shown as a whole.
func (d *differences) values(old, new reflect.Value, path string, optional bool) {
	if isEmpty(old) && isEmpty(new) || reflect.DeepEqual(old.Interface(), new.Interface()) {
		return
	}
	before, after := show(old, optional), show(new, optional)
	if before == after { // a secret differs
		d.addf("%s: changed", path)
		return
	}
	d.addf("%s: %s → %s", path, before, after)
}

// show returns a value's text without secrets.
func show(v reflect.Value, optional bool) string {
	if r, ok := reflect.TypeAssert[interface{ Redacted() string }](v); ok && !isEmpty(v) {
		return r.Redacted()
	}
	switch {
	case optional && isEmpty(v):
		return "none"
	case isText(v.Type()):
		return textOf(v)
	case v.Kind() == reflect.Map:
		return "(not shown)"
	case v.Kind() == reflect.Slice:
		var all []string
		for i := range v.Len() {
			all = append(all, show(v.Index(i), false))
		}
		return strings.Join(all, ", ")
	}
	return fmt.Sprint(v)
}

// elements compares sequences of labelled elements.
func (d *differences) elements(old, new reflect.Value, path string) {
	before, after := labels(old), labels(new)
	_, named := keyField(old.Type().Elem())
	at := func(label string) string {
		if named {
			return Join(path, label)
		}
		return fmt.Sprintf("%s[%s]", path, label)
	}
	index, stays := make(map[string]int), make(map[string]bool)
	for i, label := range before {
		index[label] = i
	}
	var stayed []string
	for i, label := range after {
		j, there := index[label]
		if !there {
			d.addf("%s: added", at(label))
			continue
		}
		stays[label] = true
		stayed = append(stayed, label)
		d.compare(old.Index(j), new.Index(i), at(label), false)
	}
	for _, label := range before {
		if !stays[label] {
			d.addf("%s: removed", at(label))
		}
	}
	if !slices.Equal(slices.DeleteFunc(before, func(label string) bool { return !stays[label] }), stayed) {
		d.addf("%s: in another order", path)
	}
}

// labels returns the labels of elements, which are equal where only secrets differ.
func labels(v reflect.Value) []string {
	all := make([]string, v.Len())
	for i := range all {
		all[i] = v.Index(i).Interface().(labelled).Label()
	}
	return quantity.Distinct(all)
}
