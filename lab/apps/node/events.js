// One line of stdout: what happened, and when.

import { writeSync } from 'node:fs';

/** Prints one line. hrtime is CLOCK_MONOTONIC: the same for all processes of the machine. */
export function emit(event, values) {
  const body = {
    event,
    ...values,
    mono_ms: Number(process.hrtime.bigint() / 1000n) / 1000,
    wall_ms: Math.round((performance.timeOrigin + performance.now()) * 1000) / 1000,
  };
  let line = Buffer.from(`${JSON.stringify(body)}\n`);
  try {
    while (line.length > 0) {
      line = line.subarray(writeSync(1, line));
    }
  } catch {
    // Nobody listens any more.
    process.exit(1);
  }
}
