package wire

import (
	"reflect"
	"strings"
	"time"
	"unicode"
)

// Printable makes all texts of the value that v points at printable, and of one line each:
// nodes may say anything, and it is shown among the reports of others. Characters that give
// orders to a terminal, end a line or turn the direction of text become U+FFFD.
func Printable(v any) { printable(reflect.ValueOf(v)) }

func printable(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			printable(v.Elem())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for _, field := range v.Fields() {
			printable(field)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			printable(v.Index(i))
		}
	case reflect.Map:
		if v.CanSet() && v.Type().Key().Kind() == reflect.String {
			clean := reflect.MakeMapWithSize(v.Type(), v.Len())
			for i := v.MapRange(); i.Next(); {
				key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				key.SetString(printableText(i.Key().String()))
				value.Set(i.Value())
				printable(value)
				clean.SetMapIndex(key, value)
			}
			if !v.IsNil() {
				v.Set(clean)
			}
		}
	case reflect.String:
		if text := v.String(); v.CanSet() {
			if clean := printableText(text); clean != text {
				v.SetString(clean)
			}
		}
	}
}

func printableText(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
