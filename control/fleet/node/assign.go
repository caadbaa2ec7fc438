package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weir/control/durable"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
)

// proofTimeout bounds the time in which the servers of an assignment are to let the node in.
const proofTimeout = wire.AnswerTimeout - time.Second

// assignment is a file with the last assignment.
type assignment struct {
	Of      string `json:"of"`      // the user of the enrollment file that it follows
	Message []byte `json:"message"` // signed
}

func (n *Node) assignmentPath() string { return filepath.Join(n.dir, "assignment") }

// loadAssignment takes in what the hub has assigned.
func (n *Node) loadAssignment() {
	var of assignment
	err := loadJSON(n.assignmentPath(), &of)
	own := n.own.Load()
	if err == nil && of.Of != own.of {
		return // of a former enrollment, or there is none
	}
	if err == nil {
		own, err = n.assigned(own, of.Message)
	}
	if err != nil {
		n.log.Error("what the hub of the fleet has assigned cannot be read, it comes back with the hub: " + err.Error())
		return
	}
	n.own.Store(own)
}

// assigned returns a node as a message assigns.
func (n *Node) assigned(own *identity, message []byte) (*identity, error) {
	a, err := wire.OpenAssignment(n.key, own.Name, message)
	if err != nil {
		return nil, err
	}
	next := *own
	next.assignment, next.message = a, message
	next.Node, err = a.To(own.Node)
	return &next, err
}

// takeAssignment obeys what the hub assigns, unless it has assigned something else later. Servers must let the node
// in before it leaves those that it has.
func (n *Node) takeAssignment(ctx context.Context, question []byte) (wire.Assigned, error) {
	var q wire.AssignQuestion
	if err := json.Unmarshal(question, &q); err != nil {
		return wire.Assigned{}, err
	}
	n.assigning.Lock()
	defer n.assigning.Unlock()
	own := n.own.Load()
	next, err := n.assigned(own, q.Message)
	if errors.Is(err, wire.ErrForged) {
		n.refuse(err)
	}
	if err != nil {
		return wire.Assigned{}, err
	}
	if is, to := own.assignment, next.assignment; !to.Issued.After(is.Issued) || to.Labeled.Before(is.Labeled) {
		return wire.Assigned{Later: own.message}, nil
	}
	if next.CA != own.CA || !slices.Equal(next.Servers, own.Servers) {
		if err := n.proveServers(ctx, next.Node); err != nil {
			return wire.Assigned{}, err
		}
	}
	if n.dir != "" && !n.c.ReadOnly {
		if err := saveJSON(n.assignmentPath(), assignment{own.of, next.message}); err != nil {
			return wire.Assigned{}, err
		}
	}
	if !n.own.CompareAndSwap(own, next) {
		return wire.Assigned{}, errors.New("the node is renewing its certificate: ask again")
	}
	n.useServers(next.Servers)
	n.log.Info("the hub of the fleet has assigned this node", "labels", strings.Join(next.Labels, ","), "servers", strings.Join(next.Servers, ","))
	if next.IsReplaced() {
		poke(n.replaced)
	}
	poke(n.reassigned)
	return wire.Assigned{}, nil
}

// proveServers reports why a node, as it is to be, could not connect.
func (n *Node) proveServers(ctx context.Context, as enrollment.Node) error {
	n.servers.set(slices.Concat(n.current().Servers, as.Servers)) // it may be cut off from none of them
	proved := make(chan error, 1)
	go func() { proved <- n.prove(as) }()
	var err error
	select {
	case err = <-proved:
	case <-time.After(proofTimeout):
		err = fmt.Errorf("no answer within %v", proofTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		n.servers.set(n.current().Servers)
		return fmt.Errorf("by %s the node cannot connect, and stays where it is: %w", as.URL(), err)
	}
	return nil
}

// useServers has the connection be to one of some servers.
func (n *Node) useServers(urls []string) {
	n.servers.set(urls)
	conn := n.conn.Load()
	if conn == nil {
		return
	}
	at := conn.ConnectedUrl()
	if err := conn.SetServerPool(urls); err != nil { // closed: the node ends
		n.log.Debug("the servers of the fleet: " + err.Error())
		return
	}
	if at != "" && !slices.Contains(urls, at) {
		time.AfterFunc(leaveAfter, n.reconnect)
	}
}

// leaveAfter is how long a node stays for its answer at a server that it leaves.
const leaveAfter = time.Second

// forgetAssignment forgets what was assigned to the node of a former enrollment file.
func (n *Node) forgetAssignment() {
	if n.dir == "" || n.c.ReadOnly {
		return
	}
	if err := durable.Remove(n.assignmentPath()); err != nil { // it names a former user
		n.log.Debug(err.Error())
	}
}
