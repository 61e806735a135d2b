// msgpack as CHP/2 uses it: nil, booleans, integers, text, bytes, arrays, maps; no floats, no extension types.
//
// The reader checks each length against the bytes that are left, and never allocates more. Integers beyond 2^53 are
// BigInts, both ways. Text is str, a Uint8Array is bin. The writer uses the shortest form.

const DEPTH_MAX = 16;
const encoder = new TextEncoder(), decoder = new TextDecoder("utf-8", { fatal: true });

/** An error for bytes that are no body of CHP/2. */
export class Malformed extends Error {}

/** Return the one object in `bytes`. */
export function unpack(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), size = bytes.byteLength;
  let at = 0;

  function skip(n) {
    if (at + n > size) throw new Malformed("it ends too early");
    at += n;
    return at - n;
  }
  const text = (n) => {
    const from = skip(n);
    try { return decoder.decode(bytes.subarray(from, from + n)); } catch { throw new Malformed("text is no UTF-8"); }
  };
  const bin = (n) => { const from = skip(n); return bytes.subarray(from, from + n); };
  const u8 = () => bytes[skip(1)], u16 = () => view.getUint16(skip(2)), u32 = () => view.getUint32(skip(4));
  const whole = (n) => (n >= -9007199254740991n && n <= 9007199254740991n ? Number(n) : n);

  function array(n, depth) {
    if (n > size - at) throw new Malformed("an array is longer than what is there");
    const made = new Array(n);
    for (let i = 0; i < n; i++) made[i] = next(depth + 1);
    return made;
  }
  function map(n, depth) {
    if (2 * n > size - at) throw new Malformed("a map is longer than what is there");
    const made = Object.create(null);
    for (let i = 0; i < n; i++) { const name = next(depth + 1); made[String(name)] = next(depth + 1); }
    return made;
  }
  function next(depth) {
    if (depth > DEPTH_MAX) throw new Malformed("it is too deep");
    const kind = u8();
    if (kind < 0x80) return kind;
    if (kind < 0x90) return map(kind & 15, depth);
    if (kind < 0xa0) return array(kind & 15, depth);
    if (kind < 0xc0) return text(kind & 31);
    if (kind >= 0xe0) return kind - 256;
    switch (kind) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return bin(u8());
      case 0xc5: return bin(u16());
      case 0xc6: return bin(u32());
      case 0xcc: return u8();
      case 0xcd: return u16();
      case 0xce: return u32();
      case 0xcf: return whole(view.getBigUint64(skip(8)));
      case 0xd0: return view.getInt8(skip(1));
      case 0xd1: return view.getInt16(skip(2));
      case 0xd2: return view.getInt32(skip(4));
      case 0xd3: return whole(view.getBigInt64(skip(8)));
      case 0xd9: return text(u8());
      case 0xda: return text(u16());
      case 0xdb: return text(u32());
      case 0xdc: return array(u16(), depth);
      case 0xdd: return array(u32(), depth);
      case 0xde: return map(u16(), depth);
      case 0xdf: return map(u32(), depth);
      default: throw new Malformed(`octet ${kind} begins nothing that CHP/2 has`);
    }
  }
  const made = next(0);
  if (at !== size) throw new Malformed("something follows");
  return made;
}

/** Return the bytes of a value. */
export function pack(value) {
  let room = new Uint8Array(256), view = new DataView(room.buffer), at = 0;

  function need(n) {
    if (at + n > room.length) {
      const more = new Uint8Array(Math.max(room.length * 2, at + n));
      more.set(room.subarray(0, at));
      room = more;
      view = new DataView(room.buffer);
    }
    at += n;
    return at - n;
  }
  const u8 = (n) => { const to = need(1); room[to] = n; };
  const u16 = (n) => view.setUint16(need(2), n), u32 = (n) => view.setUint32(need(4), n);
  function length(n, fixed, limit, one, two, four) {
    if (n < limit) u8(fixed | n);
    else if (one && n < 256) { u8(one); u8(n); } else if (n < 65536) { u8(two); u16(n); } else { u8(four); u32(n); }
  }
  function integer(n) {
    if (n < 0) throw new RangeError("CHP/2 has no number below 0");
    if (n < 128) u8(Number(n));
    else if (n < 256) { u8(0xcc); u8(Number(n)); } else if (n < 65536) { u8(0xcd); u16(Number(n)); }
    else if (n < 4294967296) { u8(0xce); u32(Number(n)); } else { u8(0xcf); view.setBigUint64(need(8), BigInt(n)); }
  }
  function put(one) {
    if (one === null) u8(0xc0);
    else if (one === true || one === false) u8(one ? 0xc3 : 0xc2);
    else if (typeof one === "bigint" || Number.isSafeInteger(one)) integer(one);
    else if (typeof one === "string") {
      const bytes = encoder.encode(one);
      length(bytes.length, 0xa0, 32, 0xd9, 0xda, 0xdb);
      room.set(bytes, need(bytes.length));
    } else if (one instanceof Uint8Array) {
      length(one.length, 0, 0, 0xc4, 0xc5, 0xc6);
      const to = need(one.length);
      room.set(one, to);
    } else if (Array.isArray(one)) {
      length(one.length, 0x90, 16, 0, 0xdc, 0xdd);
      for (const each of one) put(each);
    } else if (typeof one === "object") {
      const names = Object.keys(one);
      length(names.length, 0x80, 16, 0, 0xde, 0xdf);
      for (const name of names) { put(name); put(one[name]); }
    } else throw new TypeError(`${typeof one} can't be packed`);
  }
  put(value);
  return room.slice(0, at);
}
