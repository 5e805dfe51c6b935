// An HTTP/2 client on nghttp2, which Node.js has inside: node client.mjs PORT CONNECTIONS STREAMS
//
// Makes connections one after the other, each with so many calls, and prints a line of JSON for each: how the calls
// ended, [status, message] or null, and the session's error, if it had one.

import { once } from 'node:events';
import http2 from 'node:http2';

const [port, connections, streams] = process.argv.slice(2).map(Number);

function call(session) {
  const headers = { ':method': 'POST', ':path': '/a.B/C', 'content-type': 'application/grpc', te: 'trailers' };
  const stream = session.request(headers);
  let end = null;
  const look = (fields) => {
    if (fields['grpc-status'] !== undefined) {
      end = [fields['grpc-status'], fields['grpc-message'] ?? ''];
    }
  };
  stream.on('response', look);
  stream.on('trailers', look);
  // `close` comes behind it.
  stream.on('error', () => {});
  stream.resume();
  stream.end();
  return new Promise((resolve) => {
    stream.on('close', () => resolve(end));
  });
}

for (let number = 0; number < connections; number++) {
  const session = http2.connect(`http://127.0.0.1:${port}`);
  let error = null;
  session.on('error', (thrown) => {
    error = `${thrown.code}: ${thrown.message}`;
  });
  const closed = once(session, 'close');
  const ends = await Promise.all(Array.from({ length: streams }, () => call(session)));
  session.destroy();
  await closed;
  console.log(JSON.stringify({ ends, error }));
}
