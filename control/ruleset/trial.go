package ruleset

import (
	"weir/control/api"
	"weir/control/config"
	"weir/control/lists"
	"weir/filter/membership"
)

// trialOf returns the trial of a list as the configuration has it, nil where it is enforced and no
// command has decided that.
func trialOf(c *config.Config, l *config.List, decided lists.Trials) *api.Trial {
	if l.Action == config.Allow || c.Mode != membership.Exact {
		return nil
	}
	return decided.Of(l.Name, l.Enforce)
}

// Decide sets the trials of lists to what commands have decided. It returns false, and changes nothing,
// where another list is enforced then.
func (p *Ruleset) Decide(next lists.Trials) bool {
	for _, l := range p.Lists {
		if t := l.trialBy(p.Config, next); l.Enforce != (t == nil || t.Enforced) {
			return false
		}
	}
	for _, l := range p.Lists {
		l.Trial = l.trialBy(p.Config, next)
	}
	return true
}

// configured returns the list as the configuration has it.
func (l *List) configured() config.List {
	c := l.List
	if l.Trial != nil {
		c.Enforce = !l.Trial.Configured
	}
	return c
}

// trialBy returns the trial of a list where commands have decided that.
func (l *List) trialBy(c *config.Config, t lists.Trials) *api.Trial {
	as := l.configured()
	return trialOf(c, &as, t)
}

// follow sets whether a new list is on trial.
func (l *List) follow(c *config.Config, t lists.Trials) {
	if l.Trial = l.trialBy(c, t); l.Trial != nil {
		l.Enforce = l.Trial.Enforced
	}
}

// TrialLists describes the lists whose trial is open, or was ended by a command.
func (p *Ruleset) TrialLists() (all []api.TrialList) {
	for _, l := range p.Lists {
		if l.Trial != nil {
			all = append(all, api.TrialList{List: l.Name, Trial: *l.Trial})
		}
	}
	return all
}
