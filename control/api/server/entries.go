package server

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"weir/control/api"
)

// readEntries reads what is asked for.
func readEntries(query url.Values) (asked api.EntriesQuestion, err error) {
	bad := func(format string, args ...any) (api.EntriesQuestion, error) {
		return api.EntriesQuestion{}, &api.BadRequest{Err: fmt.Errorf(format, args...)}
	}
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case api.ListParameter:
			asked.List = value
		case api.ExpiringParameter:
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil || math.IsNaN(seconds) || seconds <= 0 || seconds > api.MaxTTL {
				return bad("expiring=%.60q: want seconds, up to %d", value, api.MaxTTL)
			}
			asked.Expiring = time.Duration(seconds * float64(time.Second))
		case api.ManualParameter:
			if value != "0" && value != "1" {
				return bad("manual=%.60q: want 0 or 1", value)
			}
			asked.Manual = value == "1"
		case api.AfterParameter:
			asked.After = value
		case api.LimitParameter:
			if asked.Limit, err = readLimit(value, api.MaxPage); err != nil {
				return asked, err
			}
		default:
			return bad("unknown parameter %.60q: want list, expiring, manual, after or limit", name)
		}
	}
	if asked.Limit == 0 {
		asked.Limit = api.DefaultPage
	}
	return asked, nil
}

// entriesRoutes show the entries of lists, and remove manual ones.
func entriesRoutes[T any](d EntriesReader, flush func(context.Context, string, api.FlushChange) (T, error)) []route {
	return []route{
		{http.MethodGet, api.EntriesPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			asked, err := readEntries(q.URL.Query())
			if err != nil {
				return nil, err
			}
			e, err := d.Entries(q.Context(), asked)
			e.Entries = list(e.Entries)
			return e, err
		}},
		{http.MethodPost, api.FlushPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
			var c api.FlushChange
			if q.ContentLength != 0 { // earlier clients send no body
				if err := api.ReadBody(w, q, 1<<20, &c); err != nil {
					return nil, err
				}
			}
			c.Connection = Connection(q)
			if err := c.Check(); err != nil {
				return nil, err
			}
			return flush(q.Context(), q.PathValue("list"), c)
		}},
		{http.MethodGet, api.ExportPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			format := q.URL.Query().Get(api.FormatParameter)
			switch format {
			case "":
				format = api.FormatPlain
			case api.FormatPlain, api.FormatIPSet, api.FormatNFT:
			default:
				return nil, &api.BadRequest{Err: fmt.Errorf("format=%.60q: want %s, %s or %s", format, api.FormatPlain, api.FormatIPSet, api.FormatNFT)}
			}
			e, err := d.Export(q.Context(), q.PathValue("list"), format)
			return stream(func(w http.ResponseWriter, _ *http.Request) { answerExport(e, w) }), err
		}},
	}
}

// answerExport sends the text.
func answerExport(e api.Export, w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set(api.LeftOutHeader, strconv.Itoa(e.LeftOut))
	if _, err := e.Text.WriteTo(patientWriter{w, http.NewResponseController(w)}); err != nil {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

// patientWriter bounds the time that a client takes for each piece, not for the whole.
type patientWriter struct {
	io.Writer
	connection *http.ResponseController
}

func (p patientWriter) Write(b []byte) (int, error) {
	_ = p.connection.SetWriteDeadline(time.Now().Add(answerTimeout)) // fails in tests only
	return p.Writer.Write(b)
}
