package api

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"weir/filter/key"
)

const (
	flushPath  = "/v1/lists/{list}/flush"
	exportPath = "/v1/lists/{list}/export"
)

// Limits of a page of entries.
const (
	DefaultPage = 1000
	MaxPage     = 10_000
)

// EntriesQuestion asks for manual entries: GET /v1/entries. They come in pages, in
// the order of their lists' names and keys.
type EntriesQuestion struct {
	List     string        // "": all lists
	Expiring time.Duration // only those that expire within it; 0: all
	Manual   bool          // without those that have left a feed, and stay for the list's TTL
	After    Cursor        // the end of the page before; the zero Cursor: from the first
	Limit    int           // of the page, at most MaxPage; 0: DefaultPage
}

// Cursor is the position of an entry among all.
type Cursor struct {
	List string
	Key  key.Key
}

// MarshalText returns an opaque text.
func (c Cursor) MarshalText() ([]byte, error) {
	if c.List == "" {
		return nil, nil
	}
	return base64.RawURLEncoding.AppendEncode(nil, c.Key.Append([]byte(c.List+"\x00"))), nil
}

// UnmarshalText reads the text of MarshalText.
func (c *Cursor) UnmarshalText(text []byte) error {
	b, err := base64.RawURLEncoding.DecodeString(string(text))
	name, serial, ok := strings.Cut(string(b), "\x00")
	if err == nil && ok && name != "" {
		if k, err := key.Parse([]byte(serial)); err == nil {
			*c = Cursor{name, k}
			return nil
		}
	}
	return fmt.Errorf("after=%.60q: want the next of the page before", text)
}

// Entries is a page of manual entries.
type Entries struct {
	Entries []Entry `json:"entries"`
	Next    string  `json:"next,omitempty"` // the parameter "after" of the next page; "": this is the last one
}

// Entry is a manual entry of a list.
type Entry struct {
	List    string     `json:"list"`
	Action  string     `json:"action"`            // Block or Allow
	Entry   string     `json:"entry"`             // in the format of lists
	Manual  bool       `json:"manual"`            // false: it has left a feed, and stays for the list's TTL
	Added   time.Time  `json:"added"`             // or last changed
	Expires *time.Time `json:"expires,omitempty"` // none: never
	Reason  string     `json:"reason,omitempty"`
	Origin  string     `json:"origin,omitempty"` // of a decision of CrowdSec, which has the scenario as its reason
	UID     *uint32    `json:"uid,omitempty"`    // of the user who added it; none: a client of another host did
	User    string     `json:"user,omitempty"`
}

// The formats of an export.
const (
	FormatPlain = "plain"
	FormatIPSet = "ipset"
	FormatNFT   = "nft"
)

// Export is the contents of a list.
type Export struct {
	Text    io.WriterTo
	LeftOut int // entries that the format cannot express
}

// The parameters of GET /v1/entries and of an export.
const (
	listParameter     = "list"
	expiringParameter = "expiring" // seconds
	manualParameter   = "manual"   // 1, or 0 as without it
	afterParameter    = "after"
	limitParameter    = "limit"
	formatParameter   = "format"
)

// leftOutHeader is the number of entries that an export's format cannot express.
const leftOutHeader = "Weir-Left-Out"

// readEntries reads what is asked for.
func readEntries(query url.Values) (asked EntriesQuestion, err error) {
	bad := func(format string, args ...any) (EntriesQuestion, error) {
		return EntriesQuestion{}, &BadRequest{Err: fmt.Errorf(format, args...)}
	}
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case listParameter:
			asked.List = value
		case expiringParameter:
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil || math.IsNaN(seconds) || seconds <= 0 || seconds > maxTTL {
				return bad("expiring=%.60q: want seconds, up to %d", value, maxTTL)
			}
			asked.Expiring = time.Duration(seconds * float64(time.Second))
		case manualParameter:
			if value != "0" && value != "1" {
				return bad("manual=%.60q: want 0 or 1", value)
			}
			asked.Manual = value == "1"
		case afterParameter:
			if err := asked.After.UnmarshalText([]byte(value)); err != nil {
				return bad("%w", err)
			}
		case limitParameter:
			if asked.Limit, err = strconv.Atoi(value); err != nil || asked.Limit < 1 || asked.Limit > MaxPage {
				return bad("limit=%.60q: want 1 to %d", value, MaxPage)
			}
		default:
			return bad("unknown parameter %.60q: want list, expiring, manual, after or limit", name)
		}
	}
	if asked.Limit == 0 {
		asked.Limit = DefaultPage
	}
	return asked, nil
}

// query is the inverse of readEntries.
func (e EntriesQuestion) query() string {
	q := url.Values{}
	if e.List != "" {
		q.Set(listParameter, e.List)
	}
	if e.Expiring != 0 {
		q.Set(expiringParameter, strconv.FormatFloat(e.Expiring.Seconds(), 'g', -1, 64))
	}
	if e.Manual {
		q.Set(manualParameter, "1")
	}
	if after, _ := e.After.MarshalText(); len(after) > 0 {
		q.Set(afterParameter, string(after))
	}
	if e.Limit != 0 {
		q.Set(limitParameter, strconv.Itoa(e.Limit))
	}
	return q.Encode()
}

// entriesRoutes show the entries of lists, and remove manual ones.
func entriesRoutes(d Daemon) []route {
	return []route{
		{http.MethodGet, entriesPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			asked, err := readEntries(q.URL.Query())
			if err != nil {
				return nil, err
			}
			e, err := d.Entries(q.Context(), asked)
			e.Entries = list(e.Entries)
			return e, err
		}},
		{http.MethodPost, flushPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			return d.Flush(q.Context(), q.PathValue("list"))
		}},
		{http.MethodGet, exportPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			format := q.URL.Query().Get(formatParameter)
			switch format {
			case "":
				format = FormatPlain
			case FormatPlain, FormatIPSet, FormatNFT:
			default:
				return nil, &BadRequest{Err: fmt.Errorf("format=%.60q: want %s, %s or %s", format, FormatPlain, FormatIPSet, FormatNFT)}
			}
			e, err := d.Export(q.Context(), q.PathValue("list"), format)
			return stream(func(w http.ResponseWriter, _ *http.Request) { e.answer(w) }), err
		}},
	}
}

// answer sends the text.
func (e Export) answer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set(leftOutHeader, strconv.Itoa(e.LeftOut))
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

// Entries asks for a page of manual entries.
func (c *Client) Entries(ctx context.Context, asked EntriesQuestion) (*Entries, error) {
	path := entriesPath
	if query := asked.query(); query != "" {
		path += "?" + query
	}
	return ask[Entries](ctx, c, http.MethodGet, path, nil)
}

// Flush asks for all manual entries of a list to be removed.
func (c *Client) Flush(ctx context.Context, list string) (*Changed, error) {
	return ask[Changed](ctx, c, http.MethodPost, strings.Replace(flushPath, "{list}", url.PathEscape(list), 1), nil)
}

// Export writes all active entries of a list in a format to w, and returns how many
// it left out since the format cannot express them.
func (c *Client) Export(ctx context.Context, list, format string, w io.Writer) (leftOut int, err error) {
	path := strings.Replace(exportPath, "{list}", url.PathEscape(list), 1) + "?" + url.Values{formatParameter: {format}}.Encode()
	r, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	if leftOut, err = strconv.Atoi(r.Header.Get(leftOutHeader)); err != nil {
		return 0, errors.New("the answer does not say whether it is complete")
	}
	if _, err := io.Copy(w, r.Body); err != nil {
		return 0, fmt.Errorf("the export is incomplete: %w", err)
	}
	return leftOut, nil
}
