package main

import (
	"encoding/json"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// One line of stdout: what happened, and when.
type event map[string]any

var out sync.Mutex

// Prints one line. `mono_ms` is CLOCK_MONOTONIC: the same for all processes of the machine.
func emit(e event) {
	var now unix.Timespec
	// The clock is always there, and the pointer is good.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	e["mono_ms"] = float64(now.Nano()/1000) / 1000
	e["wall_ms"] = float64(time.Now().UnixMicro()) / 1000
	line, err := json.Marshal(e)
	check(err)
	out.Lock()
	defer out.Unlock()
	if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
		os.Exit(1)
	}
}

func goVersion() string {
	return runtime.Version()
}
