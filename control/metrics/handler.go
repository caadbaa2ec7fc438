package metrics

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Path is the path at which a Handler serves the metrics.
const Path = "/metrics"

// maxScrapes is the maximum number of concurrent scrapes.
const maxScrapes = 8

// Handler returns a handler that serves the metrics of a source, of the process and
// of the Go runtime, in the format that the client prefers.
func Handler(s Source, log *slog.Logger) http.Handler { return handler(collector{s}, log) }

// HubHandler is Handler for a hub.
func HubHandler(s HubSource, log *slog.Logger) http.Handler { return handler(hubCollector{s}, log) }

func handler(c prometheus.Collector, log *slog.Logger) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelError),
		ErrorHandling:       promhttp.ContinueOnError, // some metrics are better than none
		Registry:            r,                        // which counts such errors
		MaxRequestsInFlight: maxScrapes,
	}))
	return mux
}
