package loader

import (
	"weir/loader/bpffs"
	"weir/loader/explain"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// Names that importers have yet to change.
type (
	Target    = netif.Target
	Iface     = netif.Iface
	Network   = netif.Network
	Hook      = hooks.Hook
	Neighbour = hooks.Neighbour
	Device    = hooks.Device
	Peer      = hooks.Peer
	Support   = hooks.Support
	Offload   = hooks.Offload
	Channels  = hooks.Channels
	Occupant  = hooks.Occupant
)

const (
	Native            = hooks.Native
	Generic           = hooks.Generic
	TC                = hooks.TC
	Dispatcher        = hooks.Dispatcher
	DispatcherGeneric = hooks.DispatcherGeneric

	Unknown = hooks.Unknown
	No      = hooks.No
	Yes     = hooks.Yes

	BPFFS = bpffs.Mount
)

var (
	ErrNoNetns     = netif.ErrNoNetns
	ErrNoInterface = netif.ErrNoInterface
	ErrNoBPFFS     = bpffs.ErrNoBPFFS
	ErrPermission  = explain.ErrPermission
	ErrExhausted   = explain.ErrExhausted
	ErrUnsupported = explain.ErrUnsupported
	ErrForeign     = explain.ErrForeign
	ErrNoDriver    = hooks.ErrNoDriver
	ErrMTU         = hooks.ErrMTU

	NetworkOf           = netif.NetworkOf
	HasFrags            = hooks.HasFrags
	MissingCapabilities = explain.MissingCapabilities
)
