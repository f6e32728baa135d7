// Shows what /v1/events sends, once a second. It changes nothing: it has no other request.
'use strict';

const KEPT_S = 900; // of a chart, as of gate's own history
const RETRY_MS = 1000;
const SILENCE_MS = 5000; // gate sends every second
const SCHEMA_VERSION = 1; // as gate's own
const COLOURS = ['#3b82f6', '#e4572e', '#2a9d8f', '#b07aa1', '#d9a441', '#6b7fd7', '#8c6d31', '#5fa55a'];

const byId = (id) => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get('token');
const state = { before: null, now: null, held: false, filter: '', sorted: {}, chosen: null };

const sum = (counts) => Object.values(counts).reduce((all, count) => all + count, 0);
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const amount = (value) => (value == null ? '' : (value >= 100 ? whole : tenth).format(value));
const share = (value) => (value == null ? '' : `${Math.round(value * 100)}%`);
const ms = (value) => (value == null ? '' : value.toFixed(2));

// What a counter rises by in a second; nothing with one snapshot, or if it fell, as when gate was started anew.
function risen(before, now, span) {
  return before == null || !(span > 0) || now < before ? null : (now - before) / span;
}

function rate(before, now) {
  return risen(before, now, state.before && (state.now.at_ms - state.before.at_ms) / 1000);
}

// ---- tables -------------------------------------------------------------------------------------------------------

const TABLES = {
  tenants: ['tenant', '#refused/s', '#passed/s', '#segments/s', '#RU/s', '#quota RU/s', '#burst left', 'why refused', 'tier', 'by hand'],
  services: ['service', 'store', '#clients', 'response, of its objective', '#latency ratio', 'prices and refusals by tier', '#waiting', '#at most', 'shedding'],
  types: ['type', 'service', '#answered/s', '#accepted', '#waiting', '#p50 ms', '#p90 ms', '#p99 ms', '#store p50', 'ms, of objective'],
  refusals: ['#time, UTC', 'layer', 'service', 'tenant', 'query type', 'reason', 'bucket', 'source', '#stands for'],
  verdicts: ['tenant', 'layer', 'verdict', '#a second', '#since the start'],
  packets: ['left as', '#a second', '#since the start'],
  keys: ['key', '#asked', '#error at most', 'service', 'hot'],
  overrides: ['setting', 'value', 'to set it again'],
};
const FIRST_ORDER = { tenants: 1, services: 0, types: 2, refusals: 0, verdicts: 3, packets: 2, keys: 1, overrides: 0 };

// Refusals that are a quota's work, and nobody's trouble.
const OF_QUOTA = ['quota', 'limit', 'rejected-until', 'rejection-rate', 'hot-key'];

// A cell is a text, or a number and its text.
const number = (value, print) => ({ value: value ?? null, text: print(value) });

function tenantRows({ now, before }) {
  const earlier = new Map((before?.tenants ?? []).map((tenant) => [tenant.name, tenant]));
  return now.tenants.map((tenant) => {
    const was = earlier.get(tenant.name);
    const refused = rate(was && sum(was.refused), sum(tenant.refused));
    const why = Object.entries(tenant.refused)
      .map(([reason, count]) => [reason, rate(was && (was.refused[reason] ?? 0), count)])
      .filter(([, of]) => of > 0)
      .sort((one, other) => other[1] - one[1])
      .map(([reason, of]) => `${reason} ${amount(of)}`);
    const hand = Object.entries(tenant.overrides).map(([key, value]) => `${key} = ${value}`);
    if (tenant.refuse) hand.unshift('refused');
    return {
      key: tenant.name, wrong: why.some((reason) => !OF_QUOTA.includes(reason.split(' ')[0])), chosen: () => choose(`tenant.${tenant.name}.quota`, tenant.quota_ru_per_sec),
      cells: [tenant.name, number(refused, amount), number(rate(was?.passed, tenant.passed), amount),
        number(rate(was?.segments, tenant.segments), amount),
        number(rate(was?.charged_ru, tenant.charged_ru), amount),
        number(tenant.quota_ru_per_sec, (quota) => (quota == null ? 'unlimited' : amount(quota))),
        number(tenant.burst_left, share), why.join(', '), tenant.tier, hand.join(', ')],
    };
  });
}

const RUNGS = ['', 'x2', 'x4', 'x8', 'x16', 'x32', 'x64', 'refused'];
const TIERS = ['critical', 'standard', 'batch', 'best-effort'];

function storeText(store) {
  if (!store) return '';
  if (store.up == null) return 'not tried yet';
  return `${store.up ? 'up' : 'down'} for ${whole.format(store.for_s)} s`;
}

// The percentile that is furthest beyond its objective, beside the store alone: `get p90 55 of 20 ms, store 21`.
function responseText(service) {
  const compared = service.types.flatMap((type) => Object.entries(type.objective_ms).map(([percentile, limit]) => {
    const took = type.response_ms?.[percentile];
    return took == null ? null : { type, percentile, limit, took, missed: took / limit };
  })).filter(Boolean);
  const [worst] = compared.sort((one, other) => other.missed - one.missed);
  if (!worst) return '';
  const store = worst.type.processing_ms?.[worst.percentile];
  const alone = store == null ? '' : `, store ${amount(store)}`;
  return `${worst.type.name} ${worst.percentile} ${amount(worst.took)} of ${amount(worst.limit)} ms${alone}`;
}

function serviceRows({ now }) {
  const proxied = now.queues.services.map((service) => {
    const rungs = service.tiers.filter((tier) => tier.rung > 0).map((tier) => `${tier.tier} ${RUNGS[tier.rung]}`);
    return {
      key: service.name, wrong: service.store?.up === false || rungs.length > 0 || service.shedding === 'sharing',
      cells: [service.name, storeText(service.store), number(service.store?.clients, amount), responseText(service),
        number(service.latency_ratio, ms), rungs.join(', '),
        number(service.tiers.reduce((all, tier) => all + tier.waiting, 0), amount),
        number(service.parallelism, amount), service.shedding ?? ''],
    };
  });
  const probed = now.queues.probed.map((service) => {
    const rungs = service.rungs.map((rung, tier) => rung > 0 && `${TIERS[tier]} ${RUNGS[rung]}`).filter(Boolean);
    return {
      key: service.name, wrong: !service.up || rungs.length > 0,
      cells: [service.name, service.up ? 'guarded' : 'guarded, no answer', number(null, amount), '',
        number(service.latency_ratio, ms), rungs.join(', '), number(null, amount), number(null, amount),
        service.shedding ?? ''],
    };
  });
  return [...proxied, ...probed];
}

function typeRows({ now }) {
  const rows = now.queues.services.flatMap((service) => service.types.map((type) => [service, type]));
  return rows.map(([service, type]) => {
    const times = type.response_ms;
    const missed = Object.entries(type.objective_ms).some(([percentile, limit]) => times?.[percentile] > limit);
    const objective = Object.entries(type.objective_ms).map(([percentile, limit]) => {
      const took = times?.[percentile];
      return `${percentile} ${took == null ? '' : `${amount(took)} `}of ${amount(limit)}`;
    });
    return {
      key: `${service.name} ${type.name}`, wrong: missed || type.accepted < 1,
      cells: [type.name, service.name, number(type.answered / now.queues.window_s, amount), number(type.accepted, share),
        number(type.waiting, amount), number(times?.p50, ms), number(times?.p90, ms), number(times?.p99, ms),
        number(type.processing_ms?.p50, ms), objective.join(', ')],
    };
  });
}

// One of a request that stands for others; the newest comes first. They have no names: a row is what stands in its place.
const refusalRows = ({ now }) => (now.refusals ?? []).map((refusal, place) => ({
  key: String(place), wrong: false,
  cells: [number(refusal.at_ms, (at) => new Date(at).toISOString().slice(11, 23)), refusal.layer, refusal.service,
    refusal.tenant ?? 'nobody', refusal.query_type, refusal.reason, refusal.bucket ?? '', refusal.source ?? '',
    number(refusal.weight, amount)],
}));

// Passed, and refused by reason, of each layer.
const verdictsOf = (counts) => [['passed', counts.passed], ...Object.entries(counts.refused).map(([reason, count]) => [`refused ${reason}`, count])];

// The counts of a snapshot's tenants or totals by layer and verdict, those that are not zero.
function byVerdict(layers) {
  const all = Object.entries(layers ?? {}).flatMap(([layer, counts]) => verdictsOf(counts).map(([verdict, count]) => [layer, verdict, count]));
  return all.filter(([, , count]) => count > 0);
}

function verdictRows({ now, before }) {
  const earlier = new Map((before?.tenants ?? []).map((tenant) => [tenant.name, new Map(byVerdict(tenant.layers).map(([layer, verdict, count]) => [`${layer} ${verdict}`, count]))]));
  return now.tenants.flatMap((tenant) => byVerdict(tenant.layers).map(([layer, verdict, count]) => {
    const was = earlier.get(tenant.name);
    const risen = rate(was && (was.get(`${layer} ${verdict}`) ?? 0), count);
    return {
      key: `${tenant.name} ${layer} ${verdict}`, wrong: verdict !== 'passed' && risen > 0,
      cells: [tenant.name, layer, verdict, number(risen, amount), number(count, amount)],
    };
  }));
}

function packetRows({ now, before }) {
  const counts = { ...now.status.exits, ...now.status.events };
  const earlier = before && { ...before.status.exits, ...before.status.events };
  return Object.entries(counts).filter(([, count]) => count > 0).map(([name, count]) => ({
    key: name, wrong: false,
    cells: [name, number(rate(earlier && (earlier[name] ?? 0), count), amount), number(count, amount)],
  }));
}

const keyRows = ({ now }) => (now.hotkeys ?? []).map((key) => ({
  key: `${key.service} ${key.key}`, wrong: false,
  cells: [key.key, number(key.estimate, amount), number(key.error, amount), key.service,
    key.limited ? 'hot, limited' : key.hot ? 'hot' : ''],
}));

const overrideRows = ({ now }) => now.status.overrides.map(({ key, value }) => ({
  key, wrong: false, chosen: () => choose(key, value), cells: [key, String(value), setLine(key, value)],
}));

const ROWS = {
  tenants: tenantRows, services: serviceRows, types: typeRows, refusals: refusalRows, verdicts: verdictRows,
  packets: packetRows, keys: keyRows, overrides: overrideRows,
};

const textOf = (cell) => (typeof cell === 'string' ? cell : cell.text);

function compare(one, other) {
  if (typeof one === 'string') return one.localeCompare(other);
  return (other.value ?? -Infinity) - (one.value ?? -Infinity);
}

function drawTable(name) {
  const table = byId(name);
  const columns = TABLES[name];
  const order = (state.sorted[name] ??= { by: FIRST_ORDER[name], turned: false });
  if (!table.tHead) {
    const row = table.createTHead().insertRow();
    columns.forEach((column, place) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = column.replace('#', '');
      button.addEventListener('click', () => {
        order.turned = order.by === place && !order.turned;
        order.by = place;
        drawTable(name);
      });
      const cell = document.createElement('th');
      cell.scope = 'col';
      if (column.startsWith('#')) cell.className = 'number';
      cell.append(button);
      row.append(cell);
    });
    table.createTBody();
  }
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    if (place !== order.by) cell.removeAttribute('aria-sort');
    else cell.setAttribute('aria-sort', columns[place].startsWith('#') !== order.turned ? 'descending' : 'ascending');
  });
  const wanted = state.filter.toLowerCase();
  const rows = ROWS[name](state).filter((row) => row.cells.some((cell) => textOf(cell).toLowerCase().includes(wanted)));
  rows.sort((one, other) => (order.turned ? -1 : 1) * compare(one.cells[order.by], other.cells[order.by]));
  const body = table.tBodies[0];
  const focused = document.activeElement;
  const kept = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  rows.slice(0, 200).forEach((row, place) => {
    const element = kept.get(row.key) ?? newRow(row, columns);
    kept.delete(row.key);
    element.className = row.wrong ? 'wrong' : '';
    row.cells.forEach((cell, column) => {
      const holder = element.cells[column].firstElementChild ?? element.cells[column];
      const text = textOf(cell);
      if (holder.textContent !== text) holder.textContent = text;
    });
    element.chosen = row.chosen;
    if (body.rows[place] !== element) body.insertBefore(element, body.rows[place] ?? null);
  });
  kept.forEach((row) => row.remove());
  hideWhatIsEmpty(table, rows);
  // A row that has moved has lost it.
  if (focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
}

// A section without rows is left out, and a column in which no row has anything, unless a filter has emptied them.
function hideWhatIsEmpty(table, rows) {
  const section = table.closest('section');
  section.hidden = rows.length === 0 && state.filter === '' && !section.querySelector('p')?.textContent;
  const isEmpty = (text) => text === '' || text === '0';
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    const isHidden = place > 0 && rows.length > 0 && rows.every((row) => isEmpty(textOf(row.cells[place])));
    cell.classList.toggle('empty', isHidden);
    [...table.tBodies[0].rows].forEach((row) => row.cells[place].classList.toggle('empty', isHidden));
  });
}

function newRow(row, columns) {
  const element = document.createElement('tr');
  element.dataset.key = row.key;
  columns.forEach((column, place) => {
    const cell = element.insertCell();
    if (column.startsWith('#')) cell.className = 'number';
    if (place === 0 && row.chosen) {
      const button = document.createElement('button');
      button.type = 'button';
      button.addEventListener('click', () => element.chosen());
      cell.append(button);
    }
  });
  return element;
}

// The line that sets this again, as a shell takes it.
function setLine(key, value) {
  const said = typeof value === 'number' ? `${value} RU/s` : value == null ? 'unlimited' : String(value);
  const quoted = /["$`\\!]/.test(said) ? `'${said.replaceAll("'", "'\\''")}'` : `"${said}"`;
  return `gate set ${key} ${quoted}`;
}

function choose(key, value) {
  byId('set-line').value = setLine(key, value);
  byId('set').hidden = false;
  byId('set-line').focus();
}

// ---- charts -------------------------------------------------------------------------------------------------------

class Chart {
  constructor(id) {
    this.holder = byId(id);
    this.names = [];
    this.times = [];
    this.values = new Map();
    this.plot = null;
  }

  // Adds a point of each name; one that is new was nothing before.
  add(at, points) {
    this.times.push(at);
    for (const name of Object.keys(points)) {
      if (!this.values.has(name) && this.values.size < COLOURS.length) {
        this.values.set(name, new Array(this.times.length - 1).fill(null));
      }
    }
    for (const [name, values] of this.values) values.push(points[name] ?? null);
    while (this.times[0] < at - KEPT_S) {
      this.times.shift();
      for (const values of this.values.values()) values.shift();
    }
  }

  draw() {
    const names = [...this.values.keys()];
    const data = [this.times, ...this.values.values()];
    const style = getComputedStyle(document.documentElement);
    const colour = style.getPropertyValue('--faint').trim();
    if (names.join('\n') !== this.names.join('\n') || colour !== this.colour) {
      this.plot?.destroy();
      this.names = names;
      this.colour = colour;
      const axis = { stroke: colour, grid: { stroke: style.getPropertyValue('--line').trim(), width: 1 }, ticks: { show: false } };
      const series = names.map((label, place) => ({ label, stroke: COLOURS[place], width: 1.5 }));
      const clock = (_, splits) => splits.map((at) => new Date(at * 1e3).toISOString().slice(11, 19));
      const options = {
        width: this.holder.clientWidth || 320, height: 160, legend: { show: names.length > 0, live: true },
        axes: [{ ...axis, values: clock, space: 80 }, { ...axis, size: 56 }], series: [{}, ...series], scales: { y: { range: (_, low, high) => [0, Math.max(1, high ?? 1)] } },
      };
      this.plot = new uPlot(options, data, this.holder);
    } else {
      this.plot.setData(data);
    }
  }

  resize() {
    this.plot?.setSize({ width: this.holder.clientWidth, height: 160 });
  }
}

const charts = {
  requests: new Chart('chart-requests'), reasons: new Chart('chart-reasons'),
  ratio: new Chart('chart-ratio'), waiting: new Chart('chart-waiting'),
};

// What charts show of a snapshot, as gate's history has it.
function pointOf({ at_ms, unix_s, totals, queues }) {
  const proxied = queues.services.map(({ name, latency_ratio, tiers }) => ({ name, latency_ratio, waiting: tiers.reduce((all, tier) => all + tier.waiting, 0) }));
  return { at_ms, unix_s, totals, services: [...proxied, ...queues.probed] };
}

// Adds a point to each chart, with rates since the point before.
function addPoint(point) {
  const before = state.point;
  state.point = point;
  if (!before) return;
  const span = (point.at_ms - before.at_ms) / 1000;
  const earlier = before.totals.layers ?? {};
  const requests = Object.entries(point.totals.layers ?? {}).flatMap(([layer, counts]) => [
    [`${layer} passed`, risen(earlier[layer]?.passed ?? 0, counts.passed, span)],
    [`${layer} refused`, risen(sum(earlier[layer]?.refused ?? {}), sum(counts.refused), span)],
  ]);
  requests.push(['segments', risen(before.totals.segments ?? 0, point.totals.segments ?? 0, span)]);
  const was = new Map(byVerdict(earlier).map(([layer, verdict, count]) => [`${layer} ${verdict}`, count]));
  const reasons = byVerdict(point.totals.layers).filter(([, verdict]) => verdict !== 'passed')
    .map(([layer, verdict, count]) => [`${layer} ${verdict.slice('refused '.length)}`, risen(was.get(`${layer} ${verdict}`) ?? 0, count, span)]);
  const waiting = point.services.filter((service) => service.waiting != null);
  for (const [chart, points] of [
    ['requests', requests], ['reasons', reasons],
    ['ratio', point.services.map((service) => [service.name, service.latency_ratio])],
    ['waiting', waiting.map((service) => [service.name, service.waiting])],
  ]) charts[chart].add(point.unix_s, Object.fromEntries(points));
}

const drawCharts = () => Object.values(charts).forEach((chart) => chart.draw());

// The charts of a page that is opened begin with what was before.
async function recall() {
  try {
    const response = await fetch('v1/history', { cache: 'no-store', signal: AbortSignal.timeout(SILENCE_MS) });
    if (response.ok) (await response.json()).points.forEach(addPoint);
    if (state.point) drawCharts();
  } catch {
    // What follows says that gate does not answer.
  }
}

// ---- events -------------------------------------------------------------------------------------------------------

function say(text, isWrong, isGone = false) {
  document.body.classList.toggle('gone', isGone);
  byId('state').textContent = text;
  byId('state').classList.toggle('wrong', isWrong);
}

// What an operator wants to know first, in a sentence: is anything refused for the store's sake, or down, or may it be.
function sentence({ status, queues, tenants, tenants_in_all: all }) {
  const services = queues.services.map((service) => {
    const refused = service.tiers.filter((tier) => tier.rung > 0)
      .map((tier) => (RUNGS[tier.rung] === 'refused' ? `${tier.tier} refused` : `${tier.tier} pays ${RUNGS[tier.rung].slice(1)} times its price`));
    if (service.store?.up === false) refused.unshift(`its store is ${storeText(service.store)}`);
    if (service.tiers.some((tier) => tier.stands)) refused.push('its queue stands');
    if (service.shedding === 'sharing') refused.push('who asks for more than their share is refused a part of it');
    return refused.length > 0 && `${service.name}: ${refused.join(', ')}`;
  });
  const probed = queues.probed.map((service) => !service.up && `${service.name}: does not answer its probe`);
  const troubles = [...services, ...probed].filter(Boolean);
  const said = [status.shadow ? 'shadow: nothing is refused' : 'enforcing', ...troubles];
  if (troubles.length === 0) said.push('every store is well');
  if (status.stale) said.unshift('the daemon has stopped: its heartbeat is stale');
  const listed = tenants.length < all ? `, the ${whole.format(tenants.length)} busiest are listed` : '';
  said.push(`${status.interface ?? 'no interface'}, ${whole.format(all)} tenants${listed}`);
  if (state.held) said.push('held still');
  return [said.join('; '), status.stale || troubles.length > 0];
}

function draw() {
  if (!state.now) return;
  say(...sentence(state.now));
  const note = state.now.hotkeys ? '' : 'shown to who has the token: `gate web` prints a link with it.';
  byId('keys-note').textContent = note && `Keys are ${note}`;
  byId('refusals-note').textContent = note && `Sources are ${note}`;
  Object.keys(TABLES).forEach(drawTable);
}

function received(snapshot) {
  if (snapshot.schema_version !== SCHEMA_VERSION) {
    say('gate is of another version than this page: load it again', true);
    return;
  }
  if (state.held) return;
  // One of another gate, or of one that was started anew, has no rates with the last.
  state.before = state.now;
  state.now = snapshot;
  // The history may end with a later one than the first event.
  const isKnown = state.point && snapshot.at_ms <= state.point.at_ms && snapshot.unix_s <= state.point.unix_s;
  if (!isKnown) addPoint(pointOf(snapshot));
  drawCharts();
  draw();
}

async function follow() {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const path = token ? 'v1/events/keys' : 'v1/events';
    const response = await fetch(path, { headers, signal: silence.signal, cache: 'no-store' });
    if (!response.ok) throw new Error((await response.json()).error);
    clearTimeout(timer);
    if (!state.point) await recall();
    timer = setTimeout(() => silence.abort(), SILENCE_MS);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error('gate ended the connection');
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      text += value;
      for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
        const data = text.slice(0, end).split('\n').filter((line) => line.startsWith('data:'));
        if (data.length > 0) received(JSON.parse(data.map((line) => line.slice(5)).join('\n')));
      }
    }
  } catch (error) {
    say(`${error.name === 'AbortError' ? 'gate says nothing' : error.message}; trying again`, true, true);
  } finally {
    clearTimeout(timer);
    silence.abort();
    setTimeout(follow, RETRY_MS);
  }
}

// ---- keys and buttons ---------------------------------------------------------------------------------------------

byId('filter').addEventListener('input', (event) => { state.filter = event.target.value; draw(); });
byId('hold').addEventListener('click', () => {
  state.held = !state.held;
  byId('hold').setAttribute('aria-pressed', String(state.held));
  draw();
});
byId('theme').addEventListener('click', () => {
  const root = document.documentElement.classList;
  const isDark = root.contains('dark') || (!root.contains('light') && matchMedia('(prefers-color-scheme: dark)').matches);
  root.toggle('dark', !isDark);
  root.toggle('light', isDark);
  drawCharts();
});
byId('copy').addEventListener('click', async () => {
  byId('set-line').select();
  // Only a secure page has a clipboard; selected, the line can be copied by hand.
  await navigator.clipboard?.writeText(byId('set-line').value).catch(() => {});
});
document.addEventListener('keydown', (event) => {
  if (event.key === '/' && event.target.tagName !== 'INPUT') {
    event.preventDefault();
    byId('filter').focus();
  }
});
addEventListener('resize', () => Object.values(charts).forEach((chart) => chart.resize()));

follow();
