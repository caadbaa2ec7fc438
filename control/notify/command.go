package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tempFail is the exit code EX_TEMPFAIL of sysexits(3): the command wants the event
// again later.
const tempFail = 75

// environment is all that commands get: not the daemon's, which may have secrets.
var environment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}

// execute runs the target's command for an event. An exit code other than 0 and 75
// is final, as is a timeout: the command may have done half of its work.
func (r *receiver) execute(ctx context.Context, e Event) (answer string, err error) {
	out := &bounded{most: maxAnswer}
	c := exec.CommandContext(ctx, string(r.Command), r.Arguments...)
	c.Stdin = bytes.NewReader(append(e.body(), '\n'))
	c.Stdout, c.Stderr = out, out
	c.Env, c.Dir = environment, "/"
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its children end with it
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second // for children that hold its output open
	if err := start(c); err != nil {
		return "", &failure{error: err, final: true}
	}
	err = c.Wait()
	answer = line(out.String())
	if err == nil || errors.Is(err, exec.ErrWaitDelay) { // it has exited with 0, and a child goes on
		return answer, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	var exit *exec.ExitError
	again := errors.As(err, &exit) && exit.ExitCode() == tempFail
	if answer != "" {
		err = fmt.Errorf("%w: %s", err, answer)
	}
	return answer, &failure{error: err, final: !again}
}

// start starts a command without the ambient capabilities that a service may have:
// they belong to a thread, and the command inherits those of the thread that starts
// it.
func start(c *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
			started <- fmt.Errorf("give up ambient capabilities: %w", err)
			return
		}
		started <- c.Start()
	}()
	return <-started
}

// bounded keeps the beginning of the text that is written.
type bounded struct {
	bytes.Buffer
	most int
}

// Write never fails, so that the writer goes on.
func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.most-b.Len())])
	return len(p), nil
}
