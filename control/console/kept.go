package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"weir/control/api"
	"weir/control/clock"
	"weir/control/durable"
)

// sessionsFile is the name of the file of sessions below the state directory.
const sessionsFile = "sessions.json"

// maxSessionsFile bounds what is read of it, in bytes.
const maxSessionsFile = 1 << 20

// keptSession is a session in the file. It has the SHA-256 of the cookie, so that no
// reader of the file can open the session.
type keptSession struct {
	ID       string      `json:"id"`
	Cookie   []byte      `json:"cookie_sha256"`
	Form     string      `json:"form"`
	Expires  time.Time   `json:"expires"` // by steady time
	ReadOnly bool        `json:"read_only"`
	SSH      string      `json:"ssh_connection,omitempty"`
	UID      uint32      `json:"uid"`
	Client   string      `json:"client,omitempty"`
	Process  api.Process `json:"process,omitzero"`
}

// Keep has sessions outlive a restart, in a file below a directory, with ends by the clock. With an
// error, there are none from before.
func (c *Console) Keep(dir string, by *clock.Clock) error {
	s := c.sessions
	s.saving.Lock()
	defer s.saving.Unlock()
	s.file, s.clock = filepath.Join(dir, sessionsFile), by
	f, err := os.Open(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var all []keptSession
	if err == nil {
		defer f.Close()
		err = json.NewDecoder(io.LimitReader(f, maxSessionsFile)).Decode(&all)
	}
	if err != nil {
		return fmt.Errorf("%s: the sessions of the console have ended: %w", s.file, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	latest := s.now().Add(sessionTime) // steady time may have begun anew
	for _, k := range all {
		if k.Expires = by.Wall(k.Expires); k.Expires.After(latest) {
			k.Expires = latest
		}
		one := &session{ConsoleRequest: api.ConsoleRequest{ReadOnly: k.ReadOnly, SSH: k.SSH, UID: k.UID, Client: k.Client, Process: k.Process}, id: k.ID, form: k.Form, expires: k.Expires}
		if len(k.Cookie) != len(one.cookie) || k.ID == "" || k.Form == "" || !s.now().Before(k.Expires) || len(s.all) == maxSessions {
			continue
		}
		copy(one.cookie[:], k.Cookie)
		s.add(one)
	}
	return nil
}

// save writes the sessions. Where that fails the file goes, so that no session that has
// ended comes back.
func (s *sessions) save() {
	s.saving.Lock()
	defer s.saving.Unlock()
	if s.file == "" {
		return
	}
	all := []keptSession{}
	s.mu.Lock()
	for _, one := range s.all {
		all = append(all, keptSession{one.id, one.cookie[:], one.form, s.clock.Steady(one.expires), one.ReadOnly, one.SSH, one.UID, one.Client, one.Process})
	}
	s.mu.Unlock()
	text, err := json.Marshal(all)
	if err == nil {
		err = durable.WriteFile(s.file, text)
	}
	if err != nil {
		_ = os.Remove(s.file) // without it, all end with a restart
	}
}

// Close ends all streams, which would hold up the server's end. Sessions go on after a
// restart.
func (c *Console) Close() { c.sessions.stop() }
