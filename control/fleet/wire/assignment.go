package wire

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"weir/control/api"
	"weir/control/fleet/enrollment"
)

const kindAssignment = "assignment"

// Limits of an assignment, and of a report on it.
const (
	maxAssignment = 64 << 10 // bytes, signed
	MaxLabels     = 64
	MaxServers    = 16
)

// Assignment has the settings of a node that the hub can change after it was enrolled. It stands in for
// those of the node's file.
type Assignment struct {
	Node    string    `json:"node"`
	Issued  time.Time `json:"issued"`  // of two, a node obeys the later one
	Labeled time.Time `json:"labeled"` // when the labels were set
	Labels  []string  `json:"labels,omitempty"`
	Servers []string  `json:"servers"` // tls://HOST:PORT
	CA      string    `json:"ca"`      // certificates in PEM
}

// SealAssignment returns the signed form of an assignment.
func SealAssignment(key ed25519.PrivateKey, a Assignment) ([]byte, error) {
	return sealJSON(key, kindAssignment, a)
}

// OpenAssignment returns the assignment of a node from its signed form.
func OpenAssignment(key ed25519.PublicKey, node string, message []byte) (a Assignment, err error) {
	if len(message) > maxAssignment {
		return a, fmt.Errorf("assignment of %d bytes, want at most %d: %w", len(message), maxAssignment, ErrForged)
	}
	if err := openJSON(key, kindAssignment, message, &a); err != nil {
		return Assignment{}, err
	}
	switch {
	case a.Node != node:
		return Assignment{}, fmt.Errorf("assignment of node %q, for node %q: %w", a.Node, node, ErrForged)
	case len(a.Labels) > MaxLabels, len(a.Servers) > MaxServers:
		return Assignment{}, fmt.Errorf("assignment with %d labels and %d servers, want at most %d and %d", len(a.Labels), len(a.Servers), MaxLabels, MaxServers)
	}
	return a, nil
}

// To returns a node as assigned, or why it cannot be so.
func (a Assignment) To(n enrollment.Node) (enrollment.Node, error) {
	n.Labels, n.Servers, n.CA = a.Labels, a.Servers, a.CA
	return n, n.Check()
}

// Settings returns what a node reports that is as assigned.
func (a Assignment) Settings() api.NodeSettings {
	sum := sha256.Sum256([]byte(a.CA))
	return api.NodeSettings{Labels: append([]string{}, a.Labels...), Servers: append([]string{}, a.Servers...), CA: hex.EncodeToString(sum[:])}
}

// SettingsOf returns what a node reports of its settings.
func SettingsOf(n enrollment.Node) *api.NodeSettings {
	s := Assignment{Labels: n.Labels, Servers: n.Servers, CA: n.CA}.Settings()
	s.Issuer = n.Issuer()
	return &s
}

// AssignQuestion has a node obey an assignment.
type AssignQuestion struct {
	Message []byte `json:"message"` // signed
}

// Assigned is how a node has taken an assignment.
type Assigned struct {
	// Later is the one that it obeys, signed, if that is later; none: it obeys the one that it was sent.
	Later []byte `json:"later,omitempty"`
}

// checkSettings returns what cannot be true of a report.
func checkSettings(s *api.NodeSettings) error {
	if s != nil && (len(s.Labels) > MaxLabels || len(s.Servers) > MaxServers) {
		return errors.New("status with too many labels or servers")
	}
	return nil
}
