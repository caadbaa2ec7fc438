package server

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"weir/control/api"
)

func readHistory(query url.Values) (api.HistoryQuestion, error) {
	asked := api.HistoryQuestion{Since: api.DefaultHistory}
	for name, values := range query {
		to := map[string]*time.Duration{api.SinceParameter: &asked.Since, api.StepParameter: &asked.Step}[name]
		if to == nil {
			return asked, &api.BadRequest{Err: fmt.Errorf("unknown parameter %.60q: want since or step", name)}
		}
		seconds, err := strconv.ParseFloat(values[len(values)-1], 64)
		if err != nil || math.IsNaN(seconds) || seconds < 1 || seconds > api.MaxHistory.Seconds() {
			return asked, &api.BadRequest{Err: fmt.Errorf("%s=%.60q: want seconds, from 1 to %.0f", name, values[len(values)-1], api.MaxHistory.Seconds())}
		}
		*to = time.Duration(seconds * float64(time.Second))
	}
	if err := asked.Check(); err != nil {
		return asked, &api.BadRequest{Err: err}
	}
	return asked, nil
}

func historyRoute(d Recorder) route {
	return route{http.MethodGet, api.HistoryPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		asked, err := readHistory(q.URL.Query())
		if err != nil {
			return nil, err
		}
		h, err := d.History(q.Context(), asked)
		h.Points = list(h.Points)
		for i := range h.Points {
			h.Points[i].Reasons, h.Points[i].Lists = list(h.Points[i].Reasons), list(h.Points[i].Lists)
		}
		h.Total.Reasons, h.Total.Lists = list(h.Total.Reasons), list(h.Total.Lists)
		return h, err
	}}
}
