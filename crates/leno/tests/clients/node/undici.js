// Drives a gateway with undici: `node undici.js ADDRESS`, over HTTP/1.1 and over HTTP/2. Prints a line for each case that passed.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { Readable } from 'node:stream';
import { change, limit, run } from './cases.js';

const { Client, H2CClient } = createRequire(`${process.env.LENO_CLIENTS}/`)('undici');
const origin = `http://${process.argv[2]}`;

class Browser {
  connections = 0;

  constructor(version) {
    this.version = version;
    const options = { maxHeaderSize: 1 << 17, headersTimeout: limit, bodyTimeout: limit };
    this.client = version === '1' ? new Client(origin, options) : new H2CClient(origin, options);
    this.client.on('connect', () => { this.connections += 1; });
  }

  async send(method, path, body, more = {}) {
    const { statusCode, headers, body: response, trailers } = await this.client.request({ method, path, body, ...more });
    const bytes = Buffer.from(await response.arrayBuffer());
    assert.equal(statusCode, 200, bytes.toString());
    return { headers, bytes, trailers };
  }

  async learns(name) {
    while ((await this.send('GET', `/ended/${name}`)).bytes.toString() !== 'yes') await new Promise((resolve) => { setTimeout(resolve, 5); });
  }

  cases() {
    const it = this;
    return {
      async 'one connection'() {
        for (let count = 0; count < 100; count += 1) assert.equal((await it.send('POST', '/echo', 'hello')).bytes.toString(), 'hello');
        assert.equal(it.connections, 1);
      },
      async 'large'() {
        const message = Buffer.alloc(4 << 20, '0123456789abcdef');
        assert.ok((await it.send('POST', '/echo', message)).bytes.equals(message));
      },
      async 'streamed with trailers'() {
        const parts = Array.from({ length: 100 }, (_, number) => `part ${number}\n`);
        const { bytes, trailers } = await it.send('POST', '/echo', Readable.from(parts), { headers: { te: 'trailers' } });
        assert.equal(bytes.toString(), parts.join(''));
        // Of HTTP/2, undici gives no trailers: it ends a response with its body.
        if (it.version === '1') assert.equal(trailers['x-end'], 'here');
      },
      async 'fields'() {
        const sent = Array.from({ length: 15 }, (_, number) => String(number).padStart(1000, '0'));
        const { headers } = await it.send('GET', '/fields/101', undefined, { headers: Object.fromEntries(sent.map((value, number) => [`x-echo-${number}`, value])) });
        // Of HTTP/2, undici joins the values of one name.
        assert.equal([headers['x-field']].flat().join(', ').split(', ').length, 101);
        assert.deepEqual(sent.map((_, number) => headers[`x-echo-${number}`]), sent);
      },
      async 'deadline'() {
        await assert.rejects(it.send('GET', '/quiet/deadline', undefined, { signal: AbortSignal.timeout(300) }), { name: 'TimeoutError' });
      },
      async 'cancel'() {
        const name = `cancel-undici-${it.version}`;
        const controller = new AbortController();
        const { body } = await it.client.request({ method: 'GET', path: `/quiet/${name}`, signal: controller.signal });
        await assert.rejects((async () => { for await (const _ of body) controller.abort(); })(), { name: 'AbortError' });
        await it.learns(name);
      },
    };
  }
}

const browsers = [new Browser('1'), new Browser('2')];
const all = browsers.flatMap((it) => Object.entries(it.cases()).map(([name, test]) => [`${name}, HTTP/${it.version}`, test]));
let turn = 0;

async function version() {
  turn += 1;
  const it = browsers[turn % 2];
  try {
    return (await it.send('POST', '/echo', 'hello')).headers['x-version'];
  } catch (error) {
    // At any GOAWAY, undici fails what is under way, also what is going to be answered. Nothing else may fail.
    if (it.version === '2' && /"GOAWAY" frame received with code 0$/.test(error.message)) return version();
    throw error;
  }
}

await run({ ...Object.fromEntries(all), 'change': () => change(version) });
await Promise.all(browsers.map(({ client }) => client.close()));
