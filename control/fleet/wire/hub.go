package wire

import (
	"crypto/ed25519"
	"fmt"
	"net/netip"

	"weir/control/api"
	"weir/control/fleet/enrollment"
)

// HubSubject is the subject on which a hub asks the one at an address which hub that is. Both say who
// they are: only hubs may publish there.
const HubSubject = "weir.v1.hub"

const kindHub = "hub"

// MaxHubNodes bounds the nodes that a hub names of those that report to it.
const MaxHubNodes = 6

// Hub is a hub, as it says itself. Two hubs with the same keys notice each other by that.
type Hub struct {
	Nonce    string   `json:"nonce"`             // of the question
	Instance string   `json:"instance"`          // random, of this start of the hub
	Claim    uint64   `json:"claim,omitempty"`   // the larger one rules the nodes
	Address  string   `json:"address,omitempty"` // of the hub that asks, as the other one's server sees it
	Nodes    []string `json:"nodes,omitempty"`   // that report to it
}

// SealHub returns the signed form of a hub's question or answer.
func SealHub(key ed25519.PrivateKey, h Hub) ([]byte, error) { return sealJSON(key, kindHub, h) }

// OpenHub returns a question or an answer from its signed form.
func OpenHub(key ed25519.PublicKey, message []byte) (h Hub, err error) {
	if err := openJSON(key, kindHub, message, &h); err != nil {
		return Hub{}, err
	}
	if _, err := netip.ParseAddr(h.Address); h.Address != "" && err != nil {
		return Hub{}, fmt.Errorf("hub: %w", err)
	}
	for _, n := range h.Nodes {
		if err := enrollment.CheckName(n); err != nil {
			return Hub{}, err
		}
	}
	return h, nil
}

// Term says which start of a hub made a catalog, and when.
type Term = api.Term
