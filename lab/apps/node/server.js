// The server: a handler for each of the methods.

import grpc from '@grpc/grpc-js';

import { emit } from './events.js';
import { Ledger, Source, argumentsOf, pour, wait, write } from './stream.js';

const raw = (bytes) => bytes;

/** Serves until the process ends. */
export function serve(listen, streams) {
  const method = (name, requestStream, responseStream) => ({
    path: `/lab.Lab/${name}`,
    requestStream,
    responseStream,
    requestSerialize: raw,
    requestDeserialize: raw,
    responseSerialize: raw,
    responseDeserialize: raw,
  });
  const server = new grpc.Server(streams > 0 ? { 'grpc.max_concurrent_streams': streams } : {});
  server.addService(
    {
      Echo: method('Echo', false, false),
      Never: method('Never', false, false),
      Deadline: method('Deadline', false, false),
      Fail: method('Fail', false, false),
      Ticks: method('Ticks', false, true),
      Check: method('Check', true, true),
    },
    {
      Echo: visited('echo', echo),
      Never: visited('never', never),
      Deadline: visited('deadline', deadline),
      Fail: visited('fail', fail),
      Ticks: visited('ticks', ticks),
      Check: visited('check', check),
    },
  );
  server.bindAsync(listen, grpc.ServerCredentials.createInsecure(), (error, port) => {
    if (error) {
      console.error(error.message);
      process.exit(1);
    }
    emit('listening', { address: `${listen.slice(0, listen.lastIndexOf(':'))}:${port}` });
  });
}

/** One call at the server: says that its handler began, and once why it ended. */
class Visit {
  ledger = new Ledger();
  #ended = new AbortController();
  #call;
  #method;

  constructor(call, method, args) {
    this.#call = call;
    this.#method = method;
    this.name = first(call, 'lab-call') ?? '';
    this.arguments = args;
    emit('handler', { call: this.name, method, left_ms: this.leftMs() });
    // Also when the deadline has passed; the library tells no reason, the time tells.
    call.on('cancelled', () => this.end(Date.now() >= call.getDeadline() ? 'deadline' : 'canceled'));
    if (call.cancelled) {
      this.end('canceled');
    }
  }

  /** Aborted when the call is over. */
  get ended() {
    return this.#ended.signal;
  }

  /** What the deadline leaves; null without one. */
  leftMs() {
    const deadline = this.#call.getDeadline();
    return deadline === Infinity ? null : Number(deadline) - Date.now();
  }

  end(reason) {
    if (this.ended.aborted) {
      return;
    }
    this.#ended.abort();
    emit('handler_end', { call: this.name, method: this.#method, reason, ...this.ledger.totals() });
  }
}

function first(call, key) {
  return call.metadata.get(key)[0];
}

function visited(method, run) {
  return (call, callback) => {
    let args;
    try {
      args = argumentsOf(JSON.parse(first(call, 'lab-args') ?? '{}'));
    } catch (error) {
      const refused = { code: grpc.status.INVALID_ARGUMENT, details: error.message };
      if (callback) {
        callback(refused);
      } else {
        call.emit('error', refused);
      }
      return;
    }
    void run(new Visit(call, method, args), call, callback);
  };
}

function echo(visit, call, callback) {
  visit.end('returned');
  callback(null, call.request);
}

function never() {}

function fail(visit, _, callback) {
  visit.end('returned');
  callback({ code: grpc.status.UNAVAILABLE, details: 'as asked' });
}

function deadline(visit, _, callback) {
  const left = visit.leftMs();
  visit.end('returned');
  callback(null, Buffer.from(left === null ? 'none' : left.toFixed(3)));
}

/** One message at once, then one each `every_ms`, or none for ever. */
async function ticks(visit, call) {
  const message = Buffer.alloc(Math.max(visit.arguments.bytes, 1));
  const every = visit.arguments.every_ms;
  let due = performance.now();
  while ((await write(call, message, visit.ended)) && every > 0) {
    // What was held up is not made up for.
    due = Math.max(due + every, performance.now());
    if (!(await wait(due - performance.now(), visit.ended))) {
      return;
    }
  }
}

/** Both directions at once: counts and hashes what comes until it ends, and sends its own stream. */
async function check(visit, call) {
  visit.ledger.watch(visit.name, visit.ended);
  call.on('data', (bytes) => visit.ledger.received.add(bytes));
  const read = new Promise((resolve) => {
    call.on('end', resolve);
  });
  const { seed, receive: total, chunk, receive_rate: rate } = visit.arguments;
  if (!(await pour(new Source(seed + 1), visit.ledger.sent, { total, chunk, rate }, call, visit.ended))) {
    return;
  }
  await read;
  // A reset also ends what is read, and is told a turn later.
  await new Promise(setImmediate);
  if (!call.cancelled && !visit.ended.aborted) {
    visit.end('returned');
    call.end();
  }
}
