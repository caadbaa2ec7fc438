package client

import (
	"encoding/json"
	"sync"

	"weir/control/api/process"
)

// ownProcess is the header's value.
var ownProcess = sync.OnceValue(func() string {
	text, err := json.Marshal(process.Own())
	if err != nil {
		return ""
	}
	return string(text)
})
