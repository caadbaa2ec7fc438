package api

import (
	"net/http"
	"slices"
	"strings"
)

// The roles of operators who ask a hub over the network. Each may do what those before it may.
const (
	RoleRead    = "read"    // see, and ask nodes
	RoleBlock   = "block"   // change manual entries, and what is dropped of floods
	RolePublish = "publish" // the rest of weir fleet: rollouts, sources, trials, the configuration, and another hub's rule
	RoleStandby = "standby" // copy the keys and the state: who has them can be the hub
)

// Roles are the roles, the least first.
var Roles = []string{RoleRead, RoleBlock, RolePublish, RoleStandby}

// RoleFor returns the least role that may send a request.
func RoleFor(method, path string) string {
	flushes := strings.HasPrefix(path, ListsPath+"/") && strings.HasSuffix(path, "/flush")
	switch {
	case path == BackupPath:
		return RoleStandby
	case method == http.MethodGet, method == http.MethodHead, path == FleetTracePath, path == PlanPath:
		return RoleRead
	case path == EntriesPath, path == FleetFloodsPath, flushes:
		return RoleBlock
	}
	return RolePublish
}

// MayAs reports whether a role may do what another one is needed for.
func MayAs(role, needed string) bool {
	is := slices.Index(Roles, role)
	return is >= 0 && is >= slices.Index(Roles, needed)
}

// byOperator begins a Client that is an operator. No subject of a certificate begins with it.
const byOperator = "operator "

// ByOperator returns the Client of an operator of a hub.
func ByOperator(name string) string { return byOperator + name }
