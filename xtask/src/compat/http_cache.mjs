// Runs http-tests/cache-tests against one cache, and prints a line for each test: kind, result, name, and the reason of a failure.
//
//     node http_cache.mjs SOURCE URL [PART OF A NAME]
import { pathToFileURL } from 'node:url'

const [source, base, only] = process.argv.slice(2)
const load = path => import(pathToFileURL(`${source}/${path}`))
const { default: suites } = await load('tests/index.mjs')
const { runTests, getResults } = await load('test-engine/client/runner.mjs')
const { determineTestResult, resultTypes } = await load('test-engine/lib/results.mjs')

// A test is run with those that it depends on.
const all = new Map(suites.flatMap(suite => suite.tests).map(test => [test.id, test]))
const wanted = new Set()
const want = id => {
  if (!wanted.has(id)) {
    wanted.add(id)
    for (const other of all.get(id).depends_on ?? []) want(other)
  }
}
for (const id of all.keys()) if (!only || id.includes(only)) want(id)
await runTests(suites.map(suite => ({ ...suite, tests: suite.tests.filter(test => wanted.has(test.id)) })), false, base)

const results = getResults()
for (const [id, test] of all) {
  if (!(id in results)) continue
  const found = determineTestResult(suites, id, results)
  const name = Object.keys(resultTypes).find(name => resultTypes[name] === found)
  const reason = results[id] === true ? '' : String(results[id][1]).replace(/\s+/g, ' ')
  console.log([test.kind ?? 'required', name, id, reason].join('\t'))
}
