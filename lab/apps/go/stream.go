package main

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"sync"
	"time"
)

// The seeded stream: xorshift32, each word as four bytes, the lowest first.
type source struct {
	word uint32
	at   int
}

func newSource(seed uint32) *source {
	word := seed * 2654435761
	if word == 0 {
		word = 1
	}
	return &source{word: word, at: 4}
}

func (s *source) fill(bytes []byte) {
	for i := range bytes {
		if s.at == 4 {
			s.word ^= s.word << 13
			s.word ^= s.word >> 17
			s.word ^= s.word << 5
			s.at = 0
		}
		bytes[i] = byte(s.word >> (8 * s.at))
		s.at++
	}
}

// Counts and hashes one direction.
type tally struct {
	mutex sync.Mutex
	count int64
	hash  hash.Hash
}

func newTally() *tally {
	return &tally{hash: sha256.New()}
}

func (t *tally) add(bytes []byte) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.count += int64(len(bytes))
	t.hash.Write(bytes)
}

func (t *tally) state() (int64, string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.count, hex.EncodeToString(t.hash.Sum(nil))
}

// What both ends of a checked stream know of it.
type ledger struct {
	sent, received *tally
	printing       *sync.Mutex
}

func newLedger() ledger {
	return ledger{newTally(), newTally(), &sync.Mutex{}}
}

// Prints an event with the totals. Of two events the one that is printed later counts no less.
func (l ledger) emit(e event) {
	l.printing.Lock()
	defer l.printing.Unlock()
	e["sent"], e["sent_sha256"] = l.sent.state()
	e["received"], e["received_sha256"] = l.received.state()
	emit(e)
}

// Prints the running totals twice a second until `done` is closed.
func (l ledger) watch(call string, done <-chan struct{}) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			l.emit(event{"event": "progress", "call": call})
		}
	}
}

// Sends `total` bytes of the stream in chunks, at most `rate` bytes a second (0: as fast as it goes).
func pour(s *source, t *tally, total, chunk, rate int64, send func([]byte) error, stop <-chan struct{}) error {
	began := time.Now()
	for sent := int64(0); sent < total; {
		bytes := make([]byte, min(chunk, total-sent))
		s.fill(bytes)
		// Counted before it is given away: what the other end has got was always sent.
		t.add(bytes)
		if err := send(bytes); err != nil {
			return err
		}
		sent += int64(len(bytes))
		if rate > 0 {
			due := began.Add(time.Duration(float64(sent) / float64(rate) * float64(time.Second)))
			select {
			case <-stop:
				return nil
			case <-time.After(time.Until(due)):
			}
		}
	}
	return nil
}
