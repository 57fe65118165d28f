/** SHA-256 (FIPS 180-4). `crypto.subtle` is missing on pages that are not served over HTTPS, and takes no parts. */
const K = fractions(64, Math.cbrt);
const START = fractions(8, Math.sqrt);

/** The first 32 bits of the fractional parts of roots of the first primes. */
function fractions(count, root) {
  const found = [];
  for (let number = 2; found.length < count; number++) {
    let divisor = 2;
    while (number % divisor !== 0) divisor++;
    if (divisor === number) found.push((root(number) % 1) * 2 ** 32);
  }
  return Int32Array.from(found, (bits) => Math.floor(bits) | 0);
}

/**
 * The hash of parts one after the other.
 *
 * @param {Iterable<Uint8Array>} parts
 * @returns {string} In hexadecimal digits.
 */
export function sha256(parts) {
  const state = START.slice();
  const block = new Uint8Array(64);
  let [filled, length] = [0, 0];
  const add = (part) => {
    for (let at = 0; at < part.length; ) {
      const count = Math.min(64 - filled, part.length - at);
      block.set(part.subarray(at, at + count), filled);
      [filled, at] = [filled + count, at + count];
      if (filled < 64) return;
      compress(state, block);
      filled = 0;
    }
  };
  for (const part of parts) {
    add(part);
    length += part.length;
  }
  const end = new Uint8Array(((119 - filled) % 64) + 9);
  end[0] = 0x80;
  new DataView(end.buffer).setBigUint64(end.length - 8, BigInt(length) * 8n);
  add(end);
  return Array.from(state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

const words = new Int32Array(64);

function compress(state, block) {
  const view = new DataView(block.buffer);
  for (let i = 0; i < 16; i++) words[i] = view.getInt32(4 * i);
  for (let i = 16; i < 64; i++) {
    const x = words[i - 15];
    const y = words[i - 2];
    const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    words[i] = ((words[i - 16] + s0) | 0) + ((words[i - 7] + s1) | 0);
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i++) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const first = (((h + s1) | 0) + ((e & f) ^ (~e & g)) + ((K[i] + words[i]) | 0)) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const second = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + first) | 0;
    d = c;
    c = b;
    b = a;
    a = (first + second) | 0;
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => (state[i] += word));
}
