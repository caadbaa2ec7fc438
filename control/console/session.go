package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/clock"
)

// Limits on sessions.
const (
	openWithin  = 5 * time.Minute // in which a URL is to be opened
	sessionTime = 12 * time.Hour  // a shift
	maxSessions = 64              // also of URLs; the oldest ends
	maxOfUser   = 8               // of a user whom a reverse proxy names
	maxStreams  = 8               // of a session: tabs
	maxUndo     = 32              // changes of a session that can be undone

	// Requests of a session: a page is one, what it loads has no session.
	requestRate  = 10 // a second
	requestBurst = 50
)

// secret is a random text of 256 bits.
func secret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// sum returns the SHA-256 of a secret, to keep and to compare.
func sum(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

// grant is the permission that a printed URL has, once.
type grant struct {
	api.ConsoleRequest
	expires time.Time
}

// session is the permission of a browser. It is the cookie's, at a path that only it has:
// browsers send the cookies of a host to all of its ports, where other users of this
// host may listen, but to this path only.
type session struct {
	api.ConsoleRequest
	id      string // in the path
	cookie  [sha256.Size]byte
	form    string // proves that a form is one of this session's pages
	expires time.Time
	ended   chan struct{} // closed at the end
	stopped chan struct{} // closed when the daemon stops: streams end, and sessions do not
	limit   *rate.Limiter

	mu       sync.Mutex // guards the following
	streams  int
	result   *result // of the last change
	undo     []undo
	undone   int    // undo[0] has this number
	answered string // the answer that was carried out last, to a question that is asked once
}

// caller returns who has opened the session, for a request of it.
func (one *session) caller(q *http.Request) api.Caller {
	by := api.Caller{UID: one.UID, Client: one.Client, Process: one.Process, SSH: one.SSH}
	if !one.proxied() { // the connection would be the proxy's
		by.Connection = server.Connection(q)
	}
	return by
}

// sessions are safe for concurrent use.
type sessions struct {
	now     func() time.Time
	stopped chan struct{}
	stop    func() // closes it

	saving sync.Mutex // guards the file; locked before mu
	file   string     // of the sessions; "": a restart ends them
	clock  *clock.Clock

	mu     sync.Mutex
	grants map[[sha256.Size]byte]grant
	all    map[string]*session // by id
}

func newSessions(now func() time.Time) *sessions {
	s := &sessions{now: now, stopped: make(chan struct{}), grants: make(map[[sha256.Size]byte]grant), all: make(map[string]*session)}
	s.stop = sync.OnceFunc(func() { close(s.stopped) })
	return s
}

// expire removes what has expired. The caller has locked mu.
func (s *sessions) expire() {
	now := s.now()
	for token, g := range s.grants {
		if !now.Before(g.expires) {
			delete(s.grants, token)
		}
	}
	for _, one := range s.all {
		if !now.Before(one.expires) {
			s.remove(one)
		}
	}
}

func (s *sessions) remove(one *session) {
	delete(s.all, one.id)
	close(one.ended)
}

// grant returns a token that opens a session once, until it expires.
func (s *sessions) grant(asked api.ConsoleRequest) (token string, expires time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	if len(s.grants) == maxSessions {
		var oldest [sha256.Size]byte
		for d, g := range s.grants {
			if o, ok := s.grants[oldest]; !ok || g.expires.Before(o.expires) {
				oldest = d
			}
		}
		delete(s.grants, oldest)
	}
	token, expires = secret(), s.now().Add(openWithin)
	s.grants[sum(token)] = grant{asked, expires}
	return token, expires
}

// open begins the session of a token, which is worth nothing from then on. It returns
// the session's cookie.
func (s *sessions) open(token string) (one *session, cookie string) {
	if one, cookie = s.begin(token); one != nil {
		s.save()
	}
	return one, cookie
}

func (s *sessions) begin(token string) (one *session, cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	g, ok := s.grants[sum(token)]
	if !ok {
		return nil, ""
	}
	delete(s.grants, sum(token))
	s.expireOldest(maxOfUser, func(one *session) bool { return one.proxied() && one.Client == g.Client })
	s.expireOldest(maxSessions, func(*session) bool { return true })
	cookie = secret()
	one = &session{
		ConsoleRequest: g.ConsoleRequest, id: secret(), cookie: sum(cookie), form: secret(),
		expires: s.now().Add(sessionTime),
	}
	s.add(one)
	return one, cookie
}

// expireOldest ends the oldest of some sessions, if there are so many. The caller has locked mu.
func (s *sessions) expireOldest(most int, which func(*session) bool) {
	var oldest *session
	n := 0
	for _, one := range s.all {
		if !which(one) {
			continue
		}
		if n++; oldest == nil || one.expires.Before(oldest.expires) {
			oldest = one
		}
	}
	if n >= most {
		s.remove(oldest)
	}
}

// add adds a session. The caller has locked mu.
func (s *sessions) add(one *session) {
	one.ended, one.stopped, one.limit = make(chan struct{}), s.stopped, rate.NewLimiter(requestRate, requestBurst)
	s.all[one.id] = one
}

// find returns the session of a path and a cookie, nil if there is none.
func (s *sessions) find(id, cookie string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	one := s.all[id]
	if of := sum(cookie); one == nil || subtle.ConstantTimeCompare(of[:], one.cookie[:]) != 1 {
		return nil
	}
	return one
}

// end ends a session.
func (s *sessions) end(one *session) {
	defer s.save()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[one.id] == one {
		s.remove(one)
	}
}

// endAll ends all sessions, and forgets all tokens. It returns their number.
func (s *sessions) endAll() int {
	defer s.save()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	n := len(s.grants) + len(s.all)
	clear(s.grants)
	for _, one := range s.all {
		s.remove(one)
	}
	return n
}

// lasts returns a timer's channel for the time when the session expires.
func (one *session) lasts(now time.Time) <-chan time.Time { return time.After(one.expires.Sub(now)) }

// submitted reports whether a form is one of this session's pages.
func (one *session) submitted(form string) bool {
	return subtle.ConstantTimeCompare([]byte(form), []byte(one.form)) == 1
}

// begin takes one of the session's streams, and reports whether there was one.
func (one *session) begin() bool {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.streams == maxStreams {
		return false
	}
	one.streams++
	return true
}

func (one *session) done() {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.streams--
}

// undo is how to undo a change.
type undo struct {
	change api.Change
	what   string // it does
}

var errNotUndone = errors.New("this change cannot be undone any more")

// remember keeps how to undo a change, and returns its number.
func (one *session) remember(u undo) int {
	one.mu.Lock()
	defer one.mu.Unlock()
	if len(one.undo) == maxUndo {
		one.undo, one.undone = slices.Delete(one.undo, 0, 1), one.undone+1
	}
	one.undo = append(one.undo, u)
	return one.undone + len(one.undo) - 1
}

// recall returns how to undo a change, by its number.
func (one *session) recall(n int) (undo, error) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if i := n - one.undone; i >= 0 && i < len(one.undo) && one.undo[i].what != "" {
		return one.undo[i], nil
	}
	return undo{}, errNotUndone
}

// forget makes a change one that cannot be undone any more.
func (one *session) forget(n int) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if i := n - one.undone; i >= 0 && i < len(one.undo) {
		one.undo[i] = undo{}
	}
}

// show sets the result that the pages show from now on.
func (one *session) show(r *result) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.result = r
	if r.ask != nil {
		one.answered = ""
	}
}

func (one *session) shown() *result {
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.result
}

// once reports whether an answer is to a question that is asked once, and was not carried out before:
// its button may be pressed twice.
func (one *session) once(sure string) bool {
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.answered == "" || sure != one.answered
}

// carriedOut notes an answer that was carried out.
func (one *session) carriedOut(sure string) {
	if verb, _, _ := strings.Cut(sure, " "); verb == heavyFlows || verb == rollback {
		one.mu.Lock()
		one.answered = sure
		one.mu.Unlock()
	}
}

// confirmed returns the change that a question was about, while the pages show that question.
func (one *session) confirmed(do string) (api.Change, error) {
	r := one.shown()
	if r == nil || r.ask == nil || r.ask.do != do {
		return api.Change{}, errNotAsked
	}
	return r.ask.change, nil
}
