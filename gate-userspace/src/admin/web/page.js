// Shows what /v1/events sends, once a second. It changes nothing: all its requests read.
'use strict';

const KEPT_S = 900; // of a chart, as of gate's own history
const LEAST_SHOWN_S = 60; // of a chart that has just begun
const RETRY_MS = 1000;
const SILENCE_MS = 5000; // gate sends every second
const SCHEMA_VERSION = 1; // as gate's own
const DEFAULT_SOCKET = '/run/gate/gate.sock'; // where commands look unless they are told
const LABELS_PX = 140; // beside a chart, for the names of its lines
const COLOURS = ['#3b82f6', '#e4572e', '#2a9d8f', '#b07aa1', '#d9a441', '#6b7fd7', '#8c6d31', '#5fa55a'];

const byId = (id) => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get('token');
const state = { before: null, now: null, held: false, filter: '', sorted: {}, chosen: null, reasons: new Map() };

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
  why: ['reason', '#a second', '#since the start', 'why', 'what helps', 'command'],
  verdicts: ['tenant', 'layer', 'verdict', '#a second', '#since the start'],
  packets: ['left as', '#a second', '#since the start'],
  keys: ['key', '#asked', '#error at most', 'service', 'hot'],
  overrides: ['setting', 'value', 'to set it again'],
};
const FIRST_ORDER = { tenants: 1, services: 0, types: 2, refusals: 0, why: 1, verdicts: 3, packets: 2, keys: 1, overrides: 0 };

// Refusals that are a quota's work, and nobody's trouble.
const OF_QUOTA = ['quota', 'limit', 'rejected-until', 'rejection-rate', 'hot-key'];

const isTrouble = (reason) => !OF_QUOTA.includes(reason);

// A row has in `wrong` the places of the cells that say what is wrong; a cell is a text, or a number and its text.
const number = (value, print) => ({ value: value ?? null, text: print(value) });

// A tenant's refusals by reason, with what each rises by in a second; most first.
function refusedNow(tenant, was) {
  return Object.entries(tenant.refused)
    .map(([reason, count]) => [reason, rate(was && (was.refused[reason] ?? 0), count), count])
    .sort((one, other) => other[1] - one[1] || other[2] - one[2]);
}

function tenantRows({ now, before }) {
  const earlier = new Map((before?.tenants ?? []).map((tenant) => [tenant.name, tenant]));
  return now.tenants.map((tenant) => {
    const was = earlier.get(tenant.name);
    const refused = rate(was && sum(was.refused), sum(tenant.refused));
    const why = refusedNow(tenant, was).filter(([, of]) => of > 0);
    const hand = Object.entries(tenant.overrides).map(([key, value]) => `${key} = ${value}`);
    if (tenant.refuse) hand.unshift('refused');
    return {
      key: tenant.name, wrong: why.some(([reason]) => isTrouble(reason)) ? [0, 7] : [],
      chosen: () => choose(tenant.name, `tenant.${tenant.name}.quota`, tenant.quota_ru_per_sec),
      cells: [tenant.name, number(refused, amount), number(rate(was?.passed, tenant.passed), amount),
        number(rate(was?.segments, tenant.segments), amount),
        number(rate(was?.charged_ru, tenant.charged_ru), amount),
        number(tenant.quota_ru_per_sec, (quota) => (quota == null ? 'unlimited' : amount(quota))),
        number(tenant.burst_left, share), why.map(([reason, of]) => `${reason} ${amount(of)}`).join(', '), tenant.tier, hand.join(', ')],
    };
  });
}

// How long something has been so, in its largest unit.
function duration(seconds) {
  const [count, unit] = seconds < 120 ? [seconds, 's'] : seconds < 7200 ? [seconds / 60, 'min'] : seconds < 172800 ? [seconds / 3600, 'h'] : [seconds / 86400, 'd'];
  return `${whole.format(Math.floor(count))} ${unit}`;
}

// What becomes of a tier's requests: `best-effort refused for 2 min`.
function rungText(tier, rung, forSeconds) {
  const said = RUNGS[rung] === 'refused' ? `${tier} refused` : `${tier} pays ${RUNGS[rung].slice(1)} times its price`;
  return forSeconds == null ? said : `${said} for ${duration(forSeconds)}`;
}

const RUNGS = ['', 'x2', 'x4', 'x8', 'x16', 'x32', 'x64', 'refused'];
const TIERS = ['critical', 'standard', 'batch', 'best-effort'];

function storeText(store) {
  if (!store) return '';
  if (store.up == null) return 'not tried yet';
  return `${store.up ? 'up' : 'down'} for ${duration(store.for_s)}`;
}

// The percentile that is furthest beyond its objective; nothing where none is known.
function worstOf(service) {
  const compared = service.types.flatMap((type) => Object.entries(type.objective_ms).map(([percentile, limit]) => {
    const took = type.response_ms?.[percentile];
    return took == null ? null : { type, percentile, limit, took, missed: took / limit };
  })).filter(Boolean);
  return compared.sort((one, other) => other.missed - one.missed)[0];
}

const isMissed = (service) => worstOf(service)?.missed > 1;

// That percentile beside the store alone: `get p90 55 of 20 ms, store 21`.
function responseText(service) {
  const worst = worstOf(service);
  if (!worst) return '';
  const store = worst.type.processing_ms?.[worst.percentile];
  const alone = store == null ? '' : `, store ${amount(store)}`;
  return `${worst.type.name} ${worst.percentile} ${amount(worst.took)} of ${amount(worst.limit)} ms${alone}`;
}

function serviceRows({ now }) {
  const proxied = now.queues.services.map((service) => {
    const rungs = service.tiers.filter((tier) => tier.rung > 0).map((tier) => `${tier.tier} ${RUNGS[tier.rung]}`);
    return {
      key: service.name,
      wrong: [[1, service.store?.up === false], [3, isMissed(service)], [5, rungs.length > 0], [8, service.shedding === 'sharing']]
        .filter(([, is]) => is).map(([place]) => place),
      cells: [service.name, storeText(service.store), number(service.store?.clients, amount), responseText(service),
        number(service.latency_ratio, ms), rungs.join(', '),
        number(service.tiers.reduce((all, tier) => all + tier.waiting, 0), amount),
        number(service.parallelism, amount), service.shedding ?? ''],
    };
  });
  const probed = now.queues.probed.map((service) => {
    const rungs = service.rungs.map((rung, tier) => rung > 0 && `${TIERS[tier]} ${RUNGS[rung]}`).filter(Boolean);
    return {
      key: service.name, wrong: [[1, !service.up], [5, rungs.length > 0]].filter(([, is]) => is).map(([place]) => place),
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
      key: `${service.name} ${type.name}`, wrong: [[3, type.accepted < 1], [9, missed]].filter(([, is]) => is).map(([place]) => place),
      cells: [type.name, service.name, number(type.answered / now.queues.window_s, amount), number(type.accepted, share),
        number(type.waiting, amount), number(times?.p50, ms), number(times?.p90, ms), number(times?.p99, ms),
        number(type.processing_ms?.p50, ms), objective.join(', ')],
    };
  });
}

// One of a request that stands for others; the newest comes first. They have no names: a row is what stands in its place.
const refusalRows = ({ now }) => (now.refusals ?? []).map((refusal, place) => ({
  key: String(place), wrong: isTrouble(refusal.reason) ? [5] : [],
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
      key: `${tenant.name} ${layer} ${verdict}`, wrong: verdict.startsWith('refused ') && isTrouble(verdict.slice('refused '.length)) && risen > 0 ? [2, 3] : [],
      cells: [tenant.name, layer, verdict, number(risen, amount), number(count, amount)],
    };
  }));
}

function packetRows({ now, before }) {
  const counts = { ...now.status.exits, ...now.status.events };
  const earlier = before && { ...before.status.exits, ...before.status.events };
  return Object.entries(counts).filter(([, count]) => count > 0).map(([name, count]) => ({
    key: name, wrong: [],
    cells: [name, number(rate(earlier && (earlier[name] ?? 0), count), amount), number(count, amount)],
  }));
}

const keyRows = ({ now }) => (now.hotkeys ?? []).map((key) => ({
  key: `${key.service} ${key.key}`, wrong: [],
  cells: [key.key, number(key.estimate, amount), number(key.error, amount), key.service,
    key.limited ? 'hot, limited' : key.hot ? 'hot' : ''],
}));

const overrideRows = ({ now }) => now.status.overrides.map(({ key, value }) => ({
  key, wrong: [], chosen: () => choose(key, key, value), cells: [key, String(value), setLine(key, value)],
}));

const plain = (words) => (words ?? '').replaceAll('`', '');

// Why requests of the chosen tenant are refused, what that means, and what helps.
function whyRows({ now, before }) {
  const tenant = now.tenants.find(({ name }) => name === state.chosen);
  if (!tenant) return [];
  const was = before?.tenants.find(({ name }) => name === tenant.name);
  return refusedNow(tenant, was).filter(([, , count]) => count > 0).map(([reason, of, count]) => {
    const known = state.reasons.get(reason);
    const command = known ? commandFor(known.command, tenant) : '';
    return {
      key: reason, wrong: isTrouble(reason) && of > 0 ? [0, 1] : [], chosen: () => offer(command),
      cells: [reason, number(of, amount), number(count, amount), plain(known?.cause), plain(known?.remedy), command],
    };
  });
}

// The line of a command that helps against a reason.
function commandFor(command, tenant) {
  if (command.look) return `${command.look}${socketOption()}`;
  const value = { quota: tenant.quota_ru_per_sec, burst: `${tenant.burst_ms}ms` }[command.set];
  return setLine(`tenant.${tenant.name}.${command.set}`, value);
}

const ROWS = {
  tenants: tenantRows, why: whyRows, services: serviceRows, types: typeRows, refusals: refusalRows, verdicts: verdictRows,
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
  const rows = ROWS[name](state).filter((row) => name === 'why' || row.cells.some((cell) => textOf(cell).toLowerCase().includes(wanted)));
  rows.sort((one, other) => (order.turned ? -1 : 1) * compare(one.cells[order.by], other.cells[order.by]));
  const body = table.tBodies[0];
  const focused = document.activeElement;
  const kept = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  rows.slice(0, 200).forEach((row, place) => {
    const element = kept.get(row.key) ?? newRow(row, columns);
    kept.delete(row.key);
    row.cells.forEach((cell, column) => {
      const holder = element.cells[column].firstElementChild ?? element.cells[column];
      const text = textOf(cell);
      if (holder.textContent !== text) holder.textContent = text;
      element.cells[column].classList.toggle('wrong', row.wrong.includes(column));
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
  const isOwn = section.querySelector('table') === table;
  if (isOwn) section.hidden = rows.length === 0 && state.filter === '' && !section.querySelector('p')?.textContent;
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

// Where commands find this gate, unless that is where they look.
function socketOption() {
  const path = state.now?.status.listens.find(({ key }) => key === 'admin')?.address;
  return !path || path === DEFAULT_SOCKET ? '' : ` --socket ${quoted(path)}`;
}

// A word as a shell takes it.
function quoted(word) {
  if (/^[\w./:@%+-]+$/.test(word)) return word;
  return /["$`\\!]/.test(word) ? `'${word.replaceAll("'", "'\\''")}'` : `"${word}"`;
}

// The line that sets this again, as a shell takes it.
function setLine(key, value) {
  const said = typeof value === 'number' ? `${value} RU/s` : value == null ? 'unlimited' : String(value);
  return `gate set ${quoted(key)} ${quoted(said)}${socketOption()}`;
}

// Shows what is known of a tenant's refusals, or of an override, and the line that changes it.
function choose(name, key, value) {
  state.chosen = name;
  byId('chosen').hidden = false;
  drawChosen();
  offer(setLine(key, value));
}

function offer(line) {
  byId('set-line').value = line;
  byId('set-line').focus();
}

function drawChosen() {
  if (state.chosen == null) return;
  drawTable('why');
  const { length } = byId('why').tBodies[0].rows;
  byId('why').hidden = length === 0;
  byId('chosen-title').textContent = length > 0 ? `Why requests of ${state.chosen} are refused:` : `To change ${state.chosen}:`;
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
      const series = names.map((label, place) => ({ label, stroke: COLOURS[place], width: 1.5, points: { show: false } }));
      const clock = (_, splits) => splits.map((at) => new Date(at * 1e3).toISOString().slice(11, 19));
      const options = {
        ...this.size(), padding: [8, LABELS_PX, 0, 0], legend: { show: false },
        axes: [{ ...axis, values: clock, size: 28, space: 80, incrs: [10, 30, 60, 120, 300] }, { ...axis, size: 56, values: (_, splits) => splits.map(amount) }],
        series: [{}, ...series], scales: { x: { range: (_, first, last) => [Math.min(first, last - LEAST_SHOWN_S), last] }, y: { range: (_, low, high) => [0, Math.max(1, (high ?? 1) * 1.05)] } },
        hooks: { draw: [(plot) => this.label(plot)], setCursor: [(plot) => plot.redraw(false)] },
      };
      this.plot = new uPlot(options, data, this.holder);
    } else {
      this.plot.setData(data);
    }
  }

  // Writes the names beside the lines, each with its value: the last one, or that under the pointer.
  label(plot) {
    const pixels = devicePixelRatio;
    const at = plot.cursor.idx ?? this.times.length - 1;
    const height = 14 * pixels;
    const labels = this.names.map((name, place) => {
      const value = this.values.get(name)[at];
      const last = this.values.get(name).findLast((known) => known != null) ?? 0;
      return { text: value == null ? name : `${name} ${amount(value)}`, colour: COLOURS[place], y: plot.valToPos(last, 'y', true) };
    }).sort((one, other) => one.y - other.y);
    // None lies on another: each below the one before it, and all of them within the plot.
    labels.forEach((label, place) => { label.y = Math.max(label.y, place > 0 ? labels[place - 1].y + height : plot.bbox.top); });
    let lowest = plot.bbox.top + plot.bbox.height;
    labels.toReversed().forEach((label) => { label.y = Math.min(label.y, lowest); lowest = label.y - height; });
    const { ctx } = plot;
    ctx.save();
    ctx.font = `${11 * pixels}px system-ui, sans-serif`;
    ctx.textAlign = 'left';
    ctx.textBaseline = 'middle';
    for (const { text, colour, y } of labels) {
      ctx.fillStyle = colour;
      ctx.fillText(text, plot.bbox.left + plot.bbox.width + 6 * pixels, y, (LABELS_PX - 8) * pixels);
    }
    ctx.restore();
  }

  size() {
    return { width: this.holder.clientWidth || 320, height: 170 };
  }

  resize() {
    this.plot?.setSize(this.size());
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

// What each reason of refusals means.
async function learnReasons() {
  try {
    const response = await fetch('v1/reasons', { signal: AbortSignal.timeout(SILENCE_MS) });
    if (response.ok) state.reasons = new Map((await response.json()).reasons.map((known) => [known.reason, known]));
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
    const refused = service.tiers.filter((tier) => tier.rung > 0).map((tier) => rungText(tier.tier, tier.rung, tier.rung_for_s));
    if (service.store?.up === false) refused.unshift(`its store is ${storeText(service.store)}`);
    if (service.tiers.some((tier) => tier.stands)) refused.push('its queue stands');
    if (service.shedding === 'sharing') refused.push('who asks for more than their share is refused a part of it');
    return refused.length > 0 && `${service.name}: ${refused.join(', ')}`;
  });
  const probed = queues.probed.map((service) => {
    const refused = service.rungs.map((rung, tier) => rung > 0 && rungText(TIERS[tier], rung, service.rungs_for_s[tier])).filter(Boolean);
    if (!service.up) refused.unshift('does not answer its probe');
    return refused.length > 0 && `${service.name}: ${refused.join(', ')}`;
  });
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
  const note = state.now.hotkeys ? '' : 'shown to who has the token: gate web prints a link with it.';
  byId('keys-note').textContent = note && `Keys are ${note}`;
  byId('refusals-note').textContent = note && `Sources are ${note}`;
  Object.keys(TABLES).filter((name) => name !== 'why').forEach(drawTable);
  drawChosen();
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
    if (state.reasons.size === 0) await learnReasons();
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
