package client

import (
	"encoding/json"
	"sync"

	"weir/control/api"
)

// ownProcess is the header's value.
var ownProcess = sync.OnceValue(func() string {
	text, err := json.Marshal(api.OwnProcess())
	if err != nil {
		return ""
	}
	return string(text)
})
