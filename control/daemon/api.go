package daemon

// API answers for the daemon, from any goroutine.
type API struct {
	*Daemon
	*loop
}

// API returns what answers for the daemon.
func (d *Daemon) API() *API { return &API{d, d.loop} }
