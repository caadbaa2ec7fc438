"""Fail2Ban action: ban with weir. See /usr/share/doc/weir/integrations.md.

    [DEFAULT]
    banaction = weir.py[list=fail2ban]
    banaction_allports = weir.py[list=fail2ban]

It bans all ports. An entry ends by itself when the ban does, also if Fail2Ban is killed, and is
renewed by another ban. While weir is restarted, a ban waits for it.

Each ban is one request to weir's socket, without a process: Fail2Ban bans 10,000 addresses
again when it starts, one after the other. When it stops, they stay banned until their ends.
"""

import http.client
import json
import socket
import subprocess
import time

from fail2ban.server.action import ActionBase

TIMEOUT = 30  # seconds, as of the command
BATCH = 1000  # entries of a request


class WeirAction(ActionBase):
    # Fail2Ban 0.11 gives an option called name, too.
    def __init__(self, jail, *actname, **options):
        super().__init__(jail, *actname)
        self._banned = set()
        self.reload(**options)

    def reload(self, list="manual", weir="weir", socket="/run/weir/weir.sock", **_):
        """Takes options: list is the list of weir that gets the entries, weir the path of the
        command, and socket that of the daemon."""
        self._list, self._weir, self._socket = list, weir, socket

    def clearAllParams(self):
        """Makes Fail2Ban call reload; otherwise it would remove the action then."""

    def ban(self, aInfo):
        ip, ttl = str(aInfo["ip"]), int(aInfo["bantime"])
        if ttl > 0 and aInfo.get("restored"):
            ttl = min(ttl, max(1, int(aInfo["time"]) + ttl - int(time.time())))
        reason = "fail2ban %s, failures: %s" % (self._jail.name, aInfo["failures"])
        change = {"reason": reason}
        if ttl > 0:  # that of a ban without end is negative
            change["ttl_seconds"] = ttl
        self._change("POST", [ip], change, "--ttl", "%ds" % max(ttl, 0), "--reason", reason)
        self._banned.add(ip)

    def unban(self, aInfo):
        ip = str(aInfo["ip"])
        self._change("DELETE", [ip], {})
        self._banned.discard(ip)

    def flush(self):
        """Ends all bans, as fail2ban-client unban --all asks. When the jail stops, they stay:
        weir ends them, and Fail2Ban restores them when it starts."""
        if self._jail.actions.active:
            banned = list(self._banned)
            for i in range(0, len(banned), BATCH):
                self._change("DELETE", banned[i:i + BATCH], {})
            self._banned.clear()
        return True

    def _change(self, method, entries, change, *flags):
        """Makes a change of entries. Where the daemon does not make it, as while it starts, the
        command asks again, or has the change wait for it."""
        connection = _Connection(self._socket)
        try:
            connection.request(method, "/v1/entries", json.dumps(
                {"action": "block", "list": self._list, "entries": entries, **change}),
                {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            status = 0
        finally:
            connection.close()
        if status == 400:
            raise RuntimeError("weir: " + text.strip())
        if status != 200:
            self._command("block" if method == "POST" else "unblock", *flags, entries=entries)

    def _command(self, command, *flags, entries):
        done = subprocess.run(
            [self._weir, command, "--socket", self._socket, "--list", self._list, *flags, "-"],
            input="\n".join(entries), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, timeout=2 * TIMEOUT)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())


class _Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("weir", timeout=TIMEOUT)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


Action = WeirAction
