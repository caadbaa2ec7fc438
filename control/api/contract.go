package api

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// The paths of a daemon, and of a hub, which has some of the daemon's.
const (
	StatusPath      = "/v1/status"
	TopPath         = "/v1/top"
	FloodsPath      = "/v1/floods"
	WeightsPath     = "/v1/weights"
	ListsPath       = "/v1/lists"
	WorthPath       = "/v1/worth"
	CollateralPath  = "/v1/collateral"
	ExplainPath     = "/v1/explain"
	EventsPath      = "/v1/events"
	TracePath       = "/v1/trace"
	DropsPath       = "/v1/drops"
	HistoryPath     = "/v1/history"
	AuditPath       = "/v1/audit"
	EntriesPath     = "/v1/entries"
	FlushPath       = "/v1/lists/{list}/flush"
	ExportPath      = "/v1/lists/{list}/export"
	RefreshPath     = "/v1/refresh"
	RefreshListPath = "/v1/lists/{list}/refresh"
	VersionsPath    = "/v1/lists/{list}/versions"
	RollbackPath    = "/v1/lists/{list}/rollback"
	EnforcePath     = "/v1/lists/{list}/enforce"
	ReloadPath      = "/v1/reload"
	ConfirmPath     = "/v1/confirm"
	MonitorPath     = "/v1/monitor"
	PolicePath      = "/v1/police"
	NotifyTestPath  = "/v1/notify/test"
	ConsolePath     = "/v1/console"

	FleetPath        = "/v1/fleet"
	FleetExplainPath = "/v1/fleet/explain"
	FleetTopPath     = "/v1/fleet/top"
	FleetFloodsPath  = "/v1/fleet/floods"
	FleetTracePath   = "/v1/fleet/trace"
	RolloutsPath     = "/v1/fleet/rollouts"
	TakeOverPath     = "/v1/fleet/take-over"
	LostPath         = "/v1/fleet/lost"
	PlanPath         = "/v1/fleet/plan"
	BackupPath       = "/v1/fleet/backup" // where hosts join, and not at the socket
)

// The parameters of GET /v1/drops.
const (
	ByParameter   = "by"
	LastParameter = "last" // seconds
)

// The parameters of GET /v1/entries, and of an export.
const (
	ListParameter     = "list"
	ExpiringParameter = "expiring" // seconds
	ManualParameter   = "manual"   // 1, or 0 as without it
	AfterParameter    = "after"
	LimitParameter    = "limit" // of GET /v1/drops and /v1/audit, too
	FormatParameter   = "format"
)

// The parameters of GET /v1/history, in seconds.
const (
	SinceParameter = "since"
	StepParameter  = "step"
)

// PlacesParameter of GET /v1/explain says whether the places of entries in their sources are
// looked for: true (the default) or false.
const PlacesParameter = "places"

// ConfirmParameter of a reload says in how many seconds it has to be confirmed.
const ConfirmParameter = "confirm_seconds"

// DiffParameter of a list's versions names a version by the beginning of its checksum; it may be
// repeated.
const DiffParameter = "diff"

// NodeParameter names a node of a fleet; it may be repeated.
const NodeParameter = "node"

// LeftOutHeader has the number of entries that an export's format cannot express.
const LeftOutHeader = "Weir-Left-Out"

// ProcessHeader has the Process of a command, in JSON. It is believed of root alone, who
// could change the audit as well, and where the daemon may not see processes of others.
const ProcessHeader = "Weir-Process"

// MaxProcessHeader bounds it, in bytes.
const MaxProcessHeader = 512

// UntilHeader has the time since the boot of the host after which a client on this host no longer waits for an answer. A
// server that was stopped meanwhile must not carry out what was given up.
const UntilHeader = "Weir-Until"

// MaxBody bounds a request, in bytes: some 800,000 addresses, which take 200 MB while they
// are added.
const MaxBody = 16 << 20

// ErrTooLarge is the error of a longer one.
var ErrTooLarge = fmt.Errorf("more than %d MiB: put that many entries into a file, and name it in the configuration as a source of the list", MaxBody>>20)

// ReadAuthorities reads the certificates of authorities, in PEM.
func ReadAuthorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %w", path, errNoPEM)
	}
	return authorities, nil
}

var errNoPEM = errors.New("it contains no certificate in PEM")
