// Compares our tokenizer with HF tokenizers on many strings: ids, pieces of the split rule, decoding.
//
//     node tools/tokenizer_probe.mjs MODULE TOKENIZER DRIVER [--points STEP] [--random COUNT] [--decode COUNT] [FILE...]
//
// MODULE     folder of the npm package `tokenizers` (`npm install tokenizers` somewhere outside the repository)
// TOKENIZER  a tokenizer.json both sides read
// DRIVER     our side: build/bench/bench_tokenizer, run with --lines
// --points   every STEP-th code point (default 1) in several contexts, three strings each
// --random   random strings (default 400000)
// --decode   random lists of ids (default 100000)
// FILE       texts, compared in chunks
//
// HF tells the pieces by the word number of each token; they are compared where no added token is in the string.
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { resolve } from 'node:path'
import { createInterface } from 'node:readline'

const BATCH = 2000
const [modulePath, tokenizerPath, driver, ...rest] = process.argv.slice(2)
if (!driver) {
  console.error('usage: tokenizer_probe.mjs MODULE TOKENIZER DRIVER [--points STEP] [--random COUNT] [--decode COUNT] [FILE...]')
  process.exit(2)
}
const options = { points: 1, random: 400000, decode: 100000 }
const files = []
for (let i = 0; i < rest.length; i++) {
  if (rest[i].startsWith('--')) options[rest[i].slice(2)] = Number(rest[++i])
  else files.push(rest[i])
}

const { Tokenizer } = createRequire(import.meta.url)(resolve(modulePath))
const description = readFileSync(tokenizerPath, 'utf8')
const hf = Tokenizer.fromString(description)
const addedTokens = JSON.parse(description).added_tokens
const added = new Set(addedTokens.map((t) => t.id))
const idLimit = Object.values(JSON.parse(description).model.vocab).concat(...added).reduce((a, b) => Math.max(a, b)) + 20

const child = spawn(driver, ['--lines', '--tokenizer', tokenizerPath], { stdio: ['pipe', 'pipe', 'inherit'] })
const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()

async function ask(items) {
  child.stdin.write(items.map((s) => JSON.stringify(s) + '\n').join(''))
  const answers = []
  for (let i = 0; i < items.length; i++) answers.push(JSON.parse((await lines.next()).value))
  return answers
}

// Bytes of each piece, from the word numbers; a byte-level token has one character a byte.
function pieces(encoding) {
  const words = encoding.getWordIds(), tokens = encoding.getTokens(), out = []
  for (let i = 0, last = -1; i < words.length; i++) {
    if (words[i] !== last) out.push(0)
    last = words[i]
    out[out.length - 1] += [...tokens[i]].length
  }
  return out
}

const equal = (a, b) => a.length === b.length && a.every((x, i) => x === b[i])
const count = { strings: 0, pieces: 0, decodings: 0, bytes: 0, differences: 0 }

function report(kind, input, expected, found) {
  if (count.differences++ >= 20) return
  console.log(`${kind}: ${JSON.stringify(input)}\n  HF   ${JSON.stringify(expected)}\n  ours ${JSON.stringify(found)}`)
}

async function compare(strings) {
  const [ours, theirs] = await Promise.all([ask(strings), hf.encodeBatch(strings)])
  strings.forEach((s, i) => {
    const ids = theirs[i].getIds(), expected = [...ids]
    count.strings++
    count.bytes += Buffer.byteLength(s)
    if (!equal(expected, ours[i][0])) report('ids', s, expected, ours[i][0])
    if (expected.some((id) => added.has(id))) return
    const split = pieces(theirs[i])
    count.pieces++
    if (!equal(split, ours[i][1])) report('pieces', s, split, ours[i][1])
  })
}

async function compareDecoding(lists) {
  const [ours, theirs] = await Promise.all([ask(lists), hf.decodeBatch(lists, false)])
  lists.forEach((ids, i) => {
    count.decodings++
    if (theirs[i] !== ours[i]) report('decode', ids, theirs[i], ours[i])
  })
}

async function all(items, compareBatch, title) {
  let batch = [], before = count.differences, n = 0
  const start = Date.now()
  for (const item of items) {
    n++
    batch.push(item)
    if (batch.length === BATCH) {
      await compareBatch(batch)
      batch = []
    }
  }
  if (batch.length) await compareBatch(batch)
  console.log(`${title}: ${n}, differences ${count.differences - before}, ${((Date.now() - start) / 1000).toFixed(0)} s`)
}

// A small generator with a fixed seed, so that every run asks the same.
let state = 12345n
function dice(sides) {
  state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn
  return Number(state >> 33n) % sides
}
const pick = (list) => list[dice(list.length)]

function* codePoints(step) {
  for (let p = 0; p < 0x110000; p += step) {
    if (p >= 0xd800 && p <= 0xdfff) continue
    const c = String.fromCodePoint(p)
    yield `${c}a b${c} ${c}1 '${c}x 's${c}\n${c}\r\n ${c} .${c}${c}!  ${c}`
    yield `'${c}${c} ${c}\t${c}\n ${c}12${c}3${c}  `
    if (addedTokens.length) yield `a ${c}${pick(addedTokens).content}${c} ${pick(addedTokens).content}`
  }
}

const alphabets = [
  [..."abcSTDrevmLl'’ſK .,!?-_\n\r\t 0123456789"],
  [..."' stdmrevlSTDMREVLſ\n"],
  [..."  \t\n\r\u00a0\u3000\u2028\u0085\u180e\u200bx1."],
  [..."日本語中文한글あア、。１２٣४ éüßñ\u0301\u0300ǅⅧ½²🙂👩‍👧🇫🇷"],
  [..."the of and to in is for that with as on be are this {}()[];:=<>+*/\\\"#@$%^&|~`"],
]
function randomCharacter(alphabet) {
  if (dice(30)) return pick(alphabet)
  if (addedTokens.length && dice(4) === 0) return pick(addedTokens).content.slice(0, dice(20) ? undefined : 5)
  const p = dice(3) ? dice(0x3000) : dice(0x110000)
  return p >= 0xd800 && p <= 0xdfff ? ' ' : String.fromCodePoint(p)
}
function* randomStrings(n) {
  for (let i = 0; i < n; i++) {
    const alphabet = pick(alphabets), length = i % 1000 ? 1 + dice(40) : 2000
    const run = dice(6) === 0
    let s = ''
    for (let k = 0; k < length; k++) s += run ? randomCharacter(alphabet).repeat(1 + dice(9)) : randomCharacter(alphabet)
    yield s
  }
}

function* chunks(paths) {
  for (const path of paths) {
    const s = readFileSync(path, 'utf8')
    for (let at = 0, n; at < s.length; at += n) {
      n = 200 + dice(3000)
      yield s.slice(at, at + n).toWellFormed()
    }
  }
}

function* idLists(n) {
  for (let i = 0; i < n; i++) {
    const kind = dice(3)
    yield Array.from({ length: dice(24) }, () => (kind === 0 || dice(3) === 0 ? dice(idLimit) : dice(256)))
  }
}

await all(codePoints(options.points), compare, 'code points in contexts')
await all(randomStrings(options.random), compare, 'random strings')
await all(chunks(files), compare, 'chunks of files')
await all(idLists(options.decode), compareDecoding, 'decodings')
child.stdin.end()
console.log(`${count.strings} strings (${(count.bytes / 1e6).toFixed(1)} MB), pieces compared in ${count.pieces}, ` +
  `${count.decodings} decodings: ${count.differences} differences`)
process.exit(count.differences ? 1 : 0)
