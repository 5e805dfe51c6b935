// The seeded stream, and what both ends of a checked stream know of it.

import { createHash } from 'node:crypto';

import { emit } from './events.js';

/** The keys of `lab-args` and what they are when absent. */
const ARGUMENTS = { every_ms: 0, bytes: 0, seed: 0, receive: 0, chunk: 0, receive_rate: 0 };

/** The keys of `lab-args` that are in a command or in the metadata, and 0 for the others. */
export function argumentsOf(given) {
  const pairs = Object.entries(ARGUMENTS).map(([key, absent]) => [key, given[key] ?? absent]);
  return Object.fromEntries(pairs);
}

/** xorshift32, each word as four bytes, the lowest first. */
export class Source {
  #word;
  #at = 4;

  constructor(seed) {
    this.#word = Math.imul(seed, 2654435761) || 1;
  }

  take(length) {
    const bytes = Buffer.alloc(length);
    for (let i = 0; i < length; i++) {
      if (this.#at === 4) {
        this.#word ^= this.#word << 13;
        this.#word ^= this.#word >>> 17;
        this.#word ^= this.#word << 5;
        this.#at = 0;
      }
      bytes[i] = this.#word >>> (8 * this.#at);
      this.#at++;
    }
    return bytes;
  }
}

/** Counts and hashes one direction. */
class Tally {
  #count = 0;
  #hash = createHash('sha256');

  add(bytes) {
    this.#count += bytes.length;
    this.#hash.update(bytes);
  }

  state(key) {
    return { [key]: this.#count, [`${key}_sha256`]: this.#hash.copy().digest('hex') };
  }
}

/** Both directions of a stream. */
export class Ledger {
  sent = new Tally();
  received = new Tally();

  totals() {
    return { ...this.sent.state('sent'), ...this.received.state('received') };
  }

  /** Prints the running totals twice a second until the signal. */
  watch(call, ended) {
    const timer = setInterval(() => emit('progress', { call, ...this.totals() }), 500);
    ended.addEventListener('abort', () => clearInterval(timer));
  }
}

/** Waits; false when the signal came first. */
export function wait(millis, ended) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      ended.removeEventListener('abort', done);
      resolve(!ended.aborted);
    };
    const timer = setTimeout(done, millis);
    ended.addEventListener('abort', done);
    if (ended.aborted) {
      done();
    }
  });
}

/**
 * Sends `total` bytes of the stream in chunks, at most `rate` bytes a second (0: as fast as it goes). False when the
 * call has ended before.
 */
export async function pour(source, tally, { total, chunk, rate }, call, ended) {
  const began = performance.now();
  for (let sent = 0; sent < total; ) {
    const bytes = source.take(Math.min(Math.max(chunk, 1), total - sent));
    // Counted before it is given away: what the other end has got was always sent.
    tally.add(bytes);
    if (!(await write(call, bytes, ended))) {
      return false;
    }
    sent += bytes.length;
    if (rate > 0 && !(await wait(began + (sent / rate) * 1000 - performance.now(), ended))) {
      return false;
    }
  }
  return !ended.aborted;
}

/** Gives a message to a call and waits until the call takes another; false when it has ended. */
export function write(call, bytes, ended) {
  return new Promise((resolve) => {
    const done = () => {
      ended.removeEventListener('abort', done);
      call.off('drain', done);
      resolve(!ended.aborted);
    };
    if (ended.aborted || call.write(bytes)) {
      // A turn for others: what was read, and stdin.
      setImmediate(done);
      return;
    }
    ended.addEventListener('abort', done);
    call.on('drain', done);
  });
}
