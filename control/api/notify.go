package api

// NotifyTest asks for a test event: POST /v1/notify/test.
type NotifyTest struct {
	Target string `json:"target"` // name of the only receiver; "": all
}

// NotifyTests are the results of a test event, by receiver.
type NotifyTests struct {
	Targets []NotifyTested `json:"targets"`
}

// NotifyTested is the result of a test event for one receiver.
type NotifyTested struct {
	Target    string  `json:"target"` // its name
	To        string  `json:"to"`     // its URL without what may be secret, or its command
	Delivered bool    `json:"delivered"`
	Answer    string  `json:"answer,omitempty"` // the status and the beginning of the text that it sent, or printed
	Error     string  `json:"error,omitempty"`  // why the event was not delivered
	Seconds   float64 `json:"seconds"`          // until the answer
	Waiting   int     `json:"waiting"`          // other events that wait for the receiver
}

// ErrNoTarget is wrapped by errors for the name of a receiver that does not exist.
var ErrNoTarget error = AbsentError("no such target of notifications")
