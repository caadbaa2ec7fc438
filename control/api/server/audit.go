package server

import (
	"net/http"

	"weir/control/api"
)

func auditRoute(d Auditor) route {
	return route{http.MethodGet, api.AuditPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		limit, err := onlyLimit(q.URL.Query(), api.DefaultAudit, api.MaxAudit)
		if err != nil {
			return nil, err
		}
		return api.Audit{Changes: list(d.Audit(limit))}, nil
	}}
}
