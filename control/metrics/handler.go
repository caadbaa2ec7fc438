package metrics

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Path is where a Handler has the metrics.
const Path = "/metrics"

// maxScrapes bounds the scrapes that are answered at a time.
const maxScrapes = 8

// Handler answers scrapes with the metrics of a source, of its process and of
// Go's runtime, in the format that the client prefers.
func Handler(s Source, log *slog.Logger) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelError),
		ErrorHandling:       promhttp.ContinueOnError, // some metrics are more than none
		Registry:            r,                        // which counts such errors
		MaxRequestsInFlight: maxScrapes,
	}))
	return mux
}
