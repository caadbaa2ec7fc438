package server

import (
	"fmt"
	"net/http"
	"strconv"

	"weir/control/api"
	"weir/control/api/internal/contract"
)

func auditRoute(d Auditor) route {
	return route{http.MethodGet, contract.AuditPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		limit := api.DefaultAudit
		for name, values := range q.URL.Query() {
			var err error
			if name != contract.LimitParameter {
				return nil, &api.BadRequest{Err: fmt.Errorf("unknown parameter %.60q: want limit", name)}
			}
			if limit, err = strconv.Atoi(values[len(values)-1]); err != nil || limit < 1 || limit > api.MaxAudit {
				return nil, &api.BadRequest{Err: fmt.Errorf("limit=%.60q: want 1 to %d", values[len(values)-1], api.MaxAudit)}
			}
		}
		return api.Audit{Changes: list(d.Audit(limit))}, nil
	}}
}
