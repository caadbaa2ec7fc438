package server

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/control/api"
)

// readDrops reads what is asked for.
func readDrops(query url.Values) (asked api.DropsQuestion, err error) {
	asked = api.DropsQuestion{By: api.BySource, Last: api.DefaultDropsFor, Limit: api.DefaultDrops}
	bad := func(format string, args ...any) (api.DropsQuestion, error) {
		return api.DropsQuestion{}, &api.BadRequest{Err: fmt.Errorf(format, args...)}
	}
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case api.ByParameter:
			if asked.By = value; !slices.Contains(api.DropsBy, value) {
				return bad("by=%.60q: want %s", value, strings.Join(api.DropsBy, ", "))
			}
		case api.LastParameter:
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil || math.IsNaN(seconds) || seconds <= 0 || seconds > api.MaxDropsFor.Seconds() {
				return bad("last=%.60q: want seconds, up to %v", value, api.MaxDropsFor.Seconds())
			}
			asked.Last = time.Duration(seconds * float64(time.Second))
		case api.LimitParameter:
			if asked.Limit, err = readLimit(value, api.MaxDrops); err != nil {
				return asked, err
			}
		default:
			return bad("unknown parameter %.60q: want by, last or limit", name)
		}
	}
	return asked, nil
}

func dropsRoute(d Recorder) route {
	return route{http.MethodGet, api.DropsPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		asked, err := readDrops(q.URL.Query())
		if err != nil {
			return nil, err
		}
		drops, err := d.Drops(q.Context(), asked)
		drops.Drops = list(drops.Drops)
		for i := range drops.Drops {
			drops.Drops[i].Lists, drops.Drops[i].Reasons = list(drops.Drops[i].Lists), list(drops.Drops[i].Reasons)
		}
		return drops, err
	}}
}
