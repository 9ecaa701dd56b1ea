'use strict';
/* Functions that hand each other memory: `protocol: chain`.
 *
 *     const { Chain } = require('./leno');
 *     const chain = await Chain.open();
 *     for await (const call of chain) call.answer(200, { body: call.body });
 *
 * A body that was received is passed on as `body: call.body` or `body: call.body.part(3, 7)` without a copy. `call.body.copy()` is a Buffer of JavaScript's
 * own. Each thing that is waited for takes one of libuv's threads (UV_THREADPOOL_SIZE), of which `for await` needs one; with more waits than threads,
 * they wait for each other.
 *
 * The addon is `leno.node` beside this file, or where LENO_ADDON says; `make -C sdk/node` builds it. */

const native = require(process.env.LENO_ADDON || './leno.node');

/** A part of a body that was received, where it is. It can be used while its call or answer is open. */
class Body {
  constructor(of, start, length) {
    this.of = of;
    this.start = start;
    this.length = length;
  }

  /** From byte `start` to before byte `end`, as of an array. */
  part(start, end = this.length) {
    if (!(start >= 0 && start <= end && end <= this.length)) throw new RangeError('this is no part of the body');
    return new Body(this.of, this.start + start, end - start);
  }

  /** A Buffer with these bytes. */
  copy() {
    return native.copy(this.of).subarray(this.start, this.start + this.length);
  }
}

/** A body as the addon takes it: nothing, a Buffer or a text that is copied, or one that was received. */
const given = (body) => {
  if (body instanceof Body) return [body.of, body.start, body.length];
  if (typeof body === 'string') return Buffer.from(body);
  if (body instanceof Uint8Array && !Buffer.isBuffer(body)) return Buffer.from(body.buffer, body.byteOffset, body.length);
  return body;
};

const fields = (headers = {}) => (Array.isArray(headers) ? headers : Object.entries(headers)).map((pair) => pair.map(String));
const head = ({ method = 'POST', authority, path = '/' }) => [method, authority, path];

/** A call, to be answered, forwarded or closed. */
class Call {
  constructor(chain, handle) {
    const { length, ...rest } = native.describe(handle);
    Object.assign(this, rest);
    this.body = new Body(handle, 0, length);
    this.chain = chain;
    this.handle = handle;
  }

  /** Whether nobody waits for the answer any more. */
  get isCancelled() {
    return native.isCancelled(this.handle);
  }

  answer(status, { headers, body } = {}) {
    native.answer(this.chain.handle, this.handle, status, fields(headers), given(body));
  }

  /** Has another function answer: `{ authority, path, method, headers, body }`. */
  forward(to) {
    native.forward(this.chain.handle, this.handle, head(to), fields(to.headers), given(to.body));
  }

  /** Calls a function for the sake of this call: as `forward`. A promise of an Answer. */
  call(to) {
    return ask(this.chain, this.handle, to);
  }

  /** Without an answer, it has failed. */
  close() {
    native.close(this.handle);
  }
}

/** An answer. Its body is there until it is closed. */
class Answer {
  constructor(handle) {
    const { length, ...rest } = native.describe(handle);
    Object.assign(this, rest);
    this.body = new Body(handle, 0, length);
    this.handle = handle;
  }

  close() {
    native.close(this.handle);
  }
}

const ask = async (chain, parent, to) =>
  new Answer(await native.wait(native.ask(chain.handle, parent, head(to), fields(to.headers), given(to.body))));

/** The link to the node. */
class Chain {
  /** Waits until the node connects to where the variable PORT says. */
  static async open() {
    const chain = new Chain();
    chain.handle = await native.open();
    return chain;
  }

  /** The next call; null: the link has ended. */
  async next() {
    const handle = await native.next(this.handle);
    return handle && new Call(this, handle);
  }

  async *[Symbol.asyncIterator]() {
    for (let call; (call = await this.next()); ) yield call;
  }

  /** Calls a function. Several calls may be under way at once. */
  call(to) {
    return ask(this, null, to);
  }
}

module.exports = { Answer, Body, Call, Chain };
