package quantity

import (
	"errors"
	"net/url"
)

// CheckURL returns an error unless a text is a URL of HTTP or HTTPS with a host. The
// text may be secret: the error is without it.
func CheckURL(text string) error {
	switch parsed, err := url.Parse(text); {
	case err != nil:
		return errors.New("malformed URL")
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		return errors.New("want a URL that begins with http:// or https://")
	case parsed.Host == "":
		return errors.New("URL without a host")
	}
	return nil
}
