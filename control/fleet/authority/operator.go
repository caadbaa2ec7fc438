package authority

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"weir/control/fleet/enrollment"
)

// OperatorsDir is the directory of operators, below that of keys. A backup leaves it out, as [TokensDir]: it would let
// in those that were revoked since.
const OperatorsDir = "operators"

// Operator is somebody, or a program, who may ask the hub over the network by a token. Who reads the record cannot use
// it.
type Operator struct {
	ID      string    `json:"token"`
	Name    string    `json:"operator"`
	Role    string    `json:"role"` // what it may do
	Hash    string    `json:"secret_sha256"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Revoked time.Time `json:"revoked,omitzero"`
}

var operators = kind[Operator]{"token", OperatorsDir, enrollment.CheckToken, func(o Operator) string { return o.ID }}

// Ended returns why the operator may ask nothing any more, "" if it may.
func (o Operator) Ended(now time.Time) string {
	switch {
	case !o.Revoked.IsZero():
		return "revoked"
	case !now.Before(o.Expires):
		return "expired"
	}
	return ""
}

// NewOperator makes a token for what is set of o, and returns its text, which is not kept.
func (a *Authority) NewOperator(o Operator) (Operator, string, error) {
	if err := enrollment.CheckOperator(o.Name); err != nil {
		return o, "", err
	}
	of := enrollment.NewToken(a.pinned())
	o.ID, o.Hash, o.Created = of.ID, hashOf(of.Secret), time.Now().UTC()
	unlock, err := a.lock()
	if err != nil {
		return o, "", err
	}
	defer unlock()
	if err := forgetEnded(a, operators, o.Created, func(o Operator) time.Time { return o.Expires }); err != nil {
		return o, "", err
	}
	return o, of.String(), record(a, operators, o)
}

// Operators returns the operators, but for those whose token ended long ago, in the order of the IDs of their tokens.
func (a *Authority) Operators() ([]Operator, error) { return all(a, operators) }

// RevokeOperator revokes the tokens of an operator. It returns their number.
func (a *Authority) RevokeOperator(name string) (revoked int, err error) {
	some, err := a.Operators()
	if err != nil {
		return 0, err
	}
	for _, o := range some {
		if o.Name == name && o.Revoked.IsZero() {
			if err := change(a, operators, o.ID, func(o *Operator) error { o.Revoked = time.Now().UTC(); return nil }); err != nil {
				return revoked, err
			}
			revoked++
		}
	}
	if revoked == 0 {
		return 0, fmt.Errorf("no operator %q has a token that is not revoked", name)
	}
	return revoked, nil
}

// errNoOperator is the same whether or not there is the token, for who guesses.
var errNoOperator = errors.New("the hub knows no such token")

// OperatorOf returns the operator with a token, or why the hub does not let it in.
func (a *Authority) OperatorOf(text string) (Operator, error) {
	t, err := enrollment.ParseToken(text)
	if err != nil {
		return Operator{}, errNoOperator
	}
	o, err := read(a, operators, t.ID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Operator{}, err
	}
	if err != nil || !hasHash(t.Secret, o.Hash) {
		return Operator{}, errNoOperator
	}
	if why := o.Ended(time.Now()); why != "" {
		return o, fmt.Errorf("the token of operator %s is %s", o.Name, why)
	}
	return o, nil
}
