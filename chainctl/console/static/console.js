// The console's page: it applies what /events sends to one state, and draws that state.
// All that comes from the database is set as text, never as HTML.
'use strict';

const $ = (id) => document.getElementById(id);
const counts = new Intl.NumberFormat('en-US');
const CHART_SECONDS = 180;
const SAMPLE_SECONDS = 0.9;
const SILENT_SECONDS = 20;
const state = {};
const narrow = matchMedia('(max-width: 44rem)');
const NARROW_ROWS = 5;

// -- words ----------------------------------------------------------------------------------------

const number = (value) => (value === null || value === undefined ? '–' : counts.format(value));

function plural(count, one, many) {
  return `${number(count)} ${count === 1 ? one : many || `${one}s`}`;
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)}\u00a0s`; // no line ends before a unit
  if (seconds < 120) return `${Math.round(seconds)}\u00a0s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)}\u00a0min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)}\u00a0h`;
  return `${number(Math.round(seconds / 86400))}\u00a0days`;
}

const about = () => (state.about && state.about.database) || {};
const age = (time) => (Date.parse(about().read_at) - Date.parse(time)) / 1000;
const ago = (time) => `${span(age(time))} ago`;

function clock(time) {
  if (!time) return '–';
  return age(time) > 43200 ? `${time.slice(0, 10)} ${time.slice(11, 16)}` : time.slice(11, 19);
}

const rows = (section) => Object.entries(state[section] || {}).map(([key, row]) => ({ key, ...row }));
const receiversOf = (chain) => rows('receivers').filter((row) => row.chain === chain);

// -- nodes ----------------------------------------------------------------------------------------

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Texts of a cell, each a span of its own, so that a change touches one text and no more.
function lines(node, ...parts) {
  const shown = parts.filter((part) => part && part.text !== '');
  while (node.children.length > shown.length) node.lastElementChild.remove();
  shown.forEach((part, index) => {
    const child = node.children[index] || node.appendChild(make('span'));
    attribute(child, 'class', part.kind || '');
    if (part.tone) attribute(child, 'data-tone', part.tone);
    else child.removeAttribute('data-tone');
    if (part.title) attribute(child, 'title', part.title);
    if (part.label) attribute(child, 'data-of', part.label);
    else child.removeAttribute('data-of');
    text(child, part.text);
  });
}

const plain = (value, title) => ({ text: value, title });
const sub = (value, title) => ({ text: value, kind: 'sub', title });
const pill = (value, tone) => ({ text: value, kind: 'pill', tone });

// -- charts ---------------------------------------------------------------------------------------

// By name, values with their times, of the last CHART_SECONDS (of more where looks are rare).
const past = new Map();

const refreshSeconds = () => (state.feed && state.feed.reader.refresh_seconds) || 1;
const chartSeconds = () => CHART_SECONDS * Math.max(1, refreshSeconds());
const now = () => Date.parse(about().read_at) / 1000;

function remember(name, value) {
  const points = past.get(name) || [];
  points.push([now(), value]);
  while (points[0][0] < now() - chartSeconds()) points.shift();
  past.set(name, points);
}

const valuesOf = (name) => (past.get(name) || []).map((point) => point[1]);

function svg(tag, attributes) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function chart(node, name, isLarge) {
  const [width, height] = [180, 40];
  if (!node.firstChild) {
    attribute(node, 'viewBox', `0 0 ${width} ${height}`);
    attribute(node, 'preserveAspectRatio', 'none');
    if (isLarge) {
      for (const y of [0.5, height / 2, height - 0.5]) {
        node.append(svg('line', { x1: 0, x2: width, y1: y, y2: y }));
      }
    }
    node.append(svg('polygon', {}), svg('polyline', {}));
  }
  const most = Math.max(...valuesOf(name), 1e-9);
  const points = (past.get(name) || []).map(([time, value]) => {
    const x = width * (1 - (now() - time) / chartSeconds());
    return [x.toFixed(2), (height - 1.5 - (value / most) * (height - 4)).toFixed(2)];
  });
  const line = points.map((point) => point.join(',')).join(' ');
  attribute(node.lastChild, 'points', line);
  const ends = points.length ? [points[0][0], points.at(-1)[0]] : [];
  attribute(node.lastChild.previousSibling, 'points', line && `${ends[0]},${height} ${line} ${ends[1]},${height}`);
}

const worstSeconds = (found) => Math.max(0, ...found.map((row) => row.behind_seconds));

let sampled = 0;

function sample() {
  if (now() < sampled) past.clear(); // another server, with another clock
  if (now() - sampled < SAMPLE_SECONDS && now() >= sampled) return;
  sampled = now();
  const chains = rows('chains');
  const live = rows('receivers').filter((row) => row.state !== 'halted');
  remember('orders', chains.reduce((sum, row) => sum + (row.orders_per_second || 0), 0));
  remember('lag', worstSeconds(live));
  for (const row of chains) remember(`chain ${row.chain}`, row.orders_per_second || 0);
  for (const row of rows('receivers')) remember(`receiver ${row.key}`, row.behind_seconds);
  for (const name of past.keys()) {
    const [kind, key] = [name.slice(0, name.indexOf(' ')), name.slice(name.indexOf(' ') + 1)];
    if (kind === 'chain' && !state.chains[key]) past.delete(name);
    if (kind === 'receiver' && !state.receivers[key]) past.delete(name);
  }
}

// -- tables ---------------------------------------------------------------------------------------

class Table {
  constructor(place, options) {
    this.options = options;
    this.page = 0;
    this.drawn = new Map();
    this.empty = make('p', { className: 'empty' });
    this.body = make('tbody');
    const heads = options.columns.map((column) => make('th', {
      className: column.kind || '', scope: 'col', textContent: column.name,
    }));
    this.table = make('table', {}, make('thead', {}, make('tr', {}, ...heads)), this.body);
    this.range = make('span');
    this.before = make('button', { type: 'button', textContent: 'Back', onclick: () => this.turn(-1) });
    this.after = make('button', { type: 'button', textContent: 'More', onclick: () => this.turn(1) });
    this.pager = make('div', { className: 'pager' }, this.range, this.before, this.after);
    place.append(this.empty, this.table, this.pager);
  }

  turn(step) {
    this.page += step;
    this.draw();
  }

  draw() {
    const { read, words, isBad, empty } = this.options;
    const size = narrow.matches ? NARROW_ROWS : this.options.size || 25;
    const all = read();
    const found = all.filter((row) => fits(row, words(row)) && (!onlyBad() || isBad(row)));
    this.page = Math.max(0, Math.min(this.page, Math.ceil(found.length / size) - 1));
    const begin = this.page * size;
    const shown = found.slice(begin, begin + size);
    this.table.hidden = !shown.length;
    this.empty.hidden = shown.length > 0;
    text(this.empty, all.length ? 'None of them fits the filter.' : empty());
    this.pager.hidden = found.length <= size;
    text(this.range, `${begin + 1} to ${begin + shown.length} of ${number(found.length)}`);
    this.before.disabled = this.page === 0;
    this.after.disabled = begin + size >= found.length;
    this.place(shown);
  }

  place(shown) {
    const kept = new Set(shown.map((row) => row.key));
    for (const [key, line] of this.drawn) {
      if (!kept.has(key)) {
        line.remove();
        this.drawn.delete(key);
      }
    }
    let next = this.body.firstElementChild;
    for (const row of shown) {
      const line = this.drawn.get(row.key) || this.line(row);
      if (line === next) next = next.nextElementSibling;
      else this.body.insertBefore(line, next);
      this.options.columns.forEach((column, index) => {
        column.draw(line.children[index].firstElementChild, row);
      });
    }
  }

  line(row) {
    const cells = this.options.columns.map((column) => {
      const cell = make('td', { className: column.kind || '' }, make('div'));
      cell.dataset.label = column.name;
      return cell;
    });
    const line = make('tr', {}, ...cells);
    line.dataset.key = row.key;
    this.drawn.set(row.key, line);
    return line;
  }
}

const query = () => $('search').value.trim().toLowerCase();
const onlyBad = () => $('only-bad').checked;

function fits(row, words) {
  const wanted = query();
  if (!wanted) return true;
  if (/^\d+$/.test(wanted) && row.chain !== undefined) return String(row.chain) === wanted;
  return words.join(' ').toLowerCase().includes(wanted);
}

// A figure with how it was before below it.
function spark(node, value, name, label) {
  if (!node.firstChild) {
    node.append(make('span'), svg('svg', { class: 'spark', role: 'img', 'aria-label': label }));
  }
  text(node.firstChild, value);
  chart(node.lastChild, name, false);
}

// -- chains ---------------------------------------------------------------------------------------

const TONES = { leads: 'good', 'steps down': 'warn', silent: 'bad' };

function life(row) {
  if (row.leader_state === 'silent') return `silent for ${span(row.last_beat_seconds)}`;
  if (row.leader_state === 'handed over') return `no leader; epoch ${number(row.epoch)} is over`;
  if (row.leader_state === 'never led') return 'no leader yet';
  return `since ${clock(row.leader_since)}, last beat ${span(row.last_beat_seconds)} ago`;
}

function delivered(row) {
  const found = receiversOf(row.chain).sort((a, b) => a.head_delivered - b.head_delivered);
  const parts = found.slice(0, 3).map((each) => ({
    text: number(each.head_delivered), kind: 'head', label: each.receiver, title: each.receiver,
  }));
  if (found.length > 3) parts.push(sub(`and ${found.length - 3} more`));
  return found.length ? parts : [sub('no receiver')];
}

const chainsTable = new Table($('chains'), {
  read: () => rows('chains').sort((a, b) => a.chain - b.chain),
  words: (row) => [`chain ${row.chain}`, row.leader || '', row.leader_state, row.topic],
  isBad: (row) => rows('notices').some((each) => each.chain === row.chain),
  empty: () => (state.absent.chains ? state.absent.chains.why : 'No chain yet: chainctl chain create 1 makes one.'),
  columns: [
    { name: 'Chain', kind: 'title', draw: (at, row) => lines(at, plain(String(row.chain)), sub(row.topic)) },
    {
      name: 'Leader',
      draw: (at, row) => lines(
        at, pill(row.leader_state, TONES[row.leader_state]), sub(row.leader || '', 'the process that leads'), sub(life(row)),
      ),
    },
    { name: 'Epoch', kind: 'n', draw: (at, row) => lines(at, plain(number(row.epoch))) },
    {
      name: 'Persisted', kind: 'n',
      draw: (at, row) => lines(
        at, { text: number(row.head_persisted), kind: 'persisted' }, sub(row.last_commit ? ago(row.last_commit) : ''),
      ),
    },
    {
      name: 'Published', kind: 'n',
      draw: (at, row) => lines(
        at, plain(number(row.head_published)),
        sub(row.unpublished_ids ? `published ${span(row.unpublished_seconds)} late` : 'all of it'),
      ),
    },
    { name: 'Delivered', kind: 'n', draw: (at, row) => lines(at, ...delivered(row)) },
    {
      name: 'Orders/s', kind: 'n',
      draw: (at, row) => {
        const pace = row.orders_per_second === null ? '–' : number(Math.round(row.orders_per_second));
        spark(at, pace, `chain ${row.chain}`, `Orders per second of chain ${row.chain}`);
      },
    },
  ],
});

// -- receivers ------------------------------------------------------------------------------------

const RANKS = { halted: 0, contradicted: 1, late: 2, 'keeps up': 3 };
const RECEIVER_TONES = { halted: 'bad', contradicted: 'bad', late: 'warn', 'keeps up': 'good' };

function disagreement(row) {
  if (row.halted) return sub(`${row.halted}: ${row.halt_detail}`);
  if (row.agrees === 'yes' || row.agrees === '-' || row.agrees === 'archived') return null;
  return sub(`checkpoint: ${row.agrees}`);
}

const receiversTable = new Table($('receiver-list'), {
  read: () => rows('receivers').sort((a, b) => RANKS[a.state] - RANKS[b.state] || a.chain - b.chain
    || a.receiver.localeCompare(b.receiver)),
  words: (row) => [`chain ${row.chain}`, row.receiver, row.state, row.halted],
  isBad: (row) => row.state !== 'keeps up',
  empty: () => 'No receiver keeps its checkpoint in this database, or reports to it.',
  columns: [
    { name: 'Receiver', kind: 'title', draw: (at, row) => lines(at, plain(row.receiver), sub(`chain ${row.chain}`)) },
    { name: 'State', draw: (at, row) => lines(at, pill(row.state, RECEIVER_TONES[row.state]), disagreement(row)) },
    {
      name: 'Delivered', kind: 'n',
      draw: (at, row) => lines(at, plain(number(row.head_delivered)), sub(`${row.checkpoint}, ${ago(row.updated)}`)),
    },
    { name: 'Orders behind', kind: 'n', draw: (at, row) => lines(at, plain(number(row.behind_rows))) },
    {
      name: 'Time behind', kind: 'n',
      draw: (at, row) => spark(at, span(row.behind_seconds), `receiver ${row.key}`, `Lag of receiver ${row.receiver} in seconds`),
    },
  ],
});

const shadowsTable = new Table($('shadows'), {
  read: () => rows('shadows').sort((a, b) => b.groups - a.groups || a.chain - b.chain
    || a.receiver.localeCompare(b.receiver)),
  words: (row) => [`chain ${row.chain}`, row.receiver, row.shadow_of, row.result],
  isBad: (row) => row.groups > 0,
  empty: () => 'No shadow yet.',
  columns: [
    { name: 'Shadow', kind: 'title', draw: (at, row) => lines(at, plain(row.receiver), sub(`of ${row.shadow_of}, chain ${row.chain}`)) },
    {
      name: 'States',
      draw: (at, row) => lines(
        at, pill(row.groups ? 'differ' : row.compared ? 'equal' : 'nothing compared', row.groups ? 'bad' : row.compared ? 'good' : ''),
        sub(row.groups ? row.result : ''),
      ),
    },
    {
      name: 'Compared', kind: 'n',
      draw: (at, row) => lines(at, plain(number(row.compared)), sub(`up to ${number(row.compared_id)}, ${ago(row.updated)}`)),
    },
  ],
});

// -- gaps -----------------------------------------------------------------------------------------

const took = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)}\u00a0ms` : span(seconds));

const gapsTable = new Table($('gaps'), {
  size: 10,
  read: () => rows('gaps').sort((a, b) => b.blocks - a.blocks || b.found.localeCompare(a.found)),
  words: (row) => [`chain ${row.chain}`, row.receiver, row.cause, row.outcome, row.source],
  isBad: (row) => row.blocks,
  empty: () => 'No receiver has met a gap.',
  columns: [
    { name: 'Found', kind: 'time', draw: (at, row) => lines(at, plain(clock(row.found), row.found)) },
    { name: 'Receiver', kind: 'title', draw: (at, row) => lines(at, plain(row.receiver), sub(`chain ${row.chain}`)) },
    {
      name: 'Outcome',
      draw: (at, row) => lines(
        at, pill(row.blocks ? `${row.outcome}, blocks` : row.outcome, row.blocks ? 'bad' : row.outcome === 'filled' ? 'good' : ''),
      ),
    },
    { name: 'Missing', draw: (at, row) => lines(at, plain(`after ${number(row.after_id)}`), sub(`up to ${number(row.until_id)}`)) },
    { name: 'Orders read', kind: 'n', draw: (at, row) => lines(at, plain(number(row.rows))) },
    {
      name: 'Read from',
      draw: (at, row) => lines(at, plain(`${row.source}, ${took(row.seconds)}`), sub(`shown by a ${row.cause}`)),
    },
  ],
});

// -- outbox ---------------------------------------------------------------------------------------

const STATUS_TONES = { abnormal: 'bad', consumed: 'good', confirmed: 'good' };

const outboxTable = new Table($('outbox-counts'), {
  read: () => rows('outbox').sort((a, b) => String(a.destination).localeCompare(String(b.destination))
    || (b.status === 'abnormal') - (a.status === 'abnormal') || String(a.status).localeCompare(String(b.status))),
  words: (row) => [row.destination || '', row.status || '', row.trouble || '', row.silent || ''],
  isBad: (row) => row.status === 'abnormal' || Boolean(row.trouble || row.silent) || row.overdue > 0,
  empty: () => (state.absent.outbox ? `Not shown: ${state.absent.outbox.why}.` : 'No message yet.'),
  columns: [
    { name: 'Destination', kind: 'title', draw: (at, row) => lines(at, plain(row.destination || 'all of them')) },
    { name: 'Status', draw: (at, row) => lines(at, row.status ? pill(row.status, STATUS_TONES[row.status]) : null) },
    {
      name: 'Deliveries', kind: 'n',
      draw: (at, row) => lines(at, plain(number(row.deliveries)), sub(row.overdue ? `${number(row.overdue)} overdue` : '')),
    },
    { name: 'Oldest', kind: 'n', draw: (at, row) => lines(at, plain(span(row.oldest_seconds))) },
    { name: 'Trouble', draw: (at, row) => lines(at, plain(row.trouble || ''), sub(row.silent || '')) },
  ],
});

const inboxesTable = new Table($('inboxes'), {
  read: () => rows('inboxes').sort((a, b) => b.dead - a.dead || a.consumer.localeCompare(b.consumer)),
  words: (row) => [row.consumer],
  isBad: (row) => row.dead > 0,
  empty: () => 'No consumer yet.',
  columns: [
    { name: 'Consumer', kind: 'title', draw: (at, row) => lines(at, plain(row.consumer)) },
    { name: 'Dead letters', kind: 'n', draw: (at, row) => lines(at, row.dead ? pill(number(row.dead), 'bad') : plain('0')) },
    { name: 'Parked', kind: 'n', draw: (at, row) => lines(at, plain(number(row.parked), 'they wait for a retry, or for one before them with their key')) },
  ],
});

// -- verification, acts ---------------------------------------------------------------------------

function verdict(row) {
  if (row.contradicted_id !== null) return ['contradicted', 'bad'];
  return row.until_id === null ? ['never verified', ''] : ['whole', 'good'];
}

function reach(row) {
  if (row.contradicted_id !== null) {
    return `${plural(row.contradicted, 'mark')} not as verified, the first at ${number(row.contradicted_id)}`;
  }
  const chain = state.chains[row.chain];
  if (row.until_id === null) return '';
  return chain && chain.head_persisted > row.until_id ? `head ${number(chain.head_persisted)}` : 'up to the head';
}

const verifiedTable = new Table($('verified'), {
  size: 15,
  read: () => rows('verified').sort((a, b) => (b.contradicted_id !== null) - (a.contradicted_id !== null)
    || String(b.verified_at || '').localeCompare(String(a.verified_at || '')) || a.chain - b.chain),
  words: (row) => [`chain ${row.chain}`, row.verified_by || '', verdict(row)[0]],
  isBad: (row) => row.contradicted_id !== null,
  empty: () => 'No chain yet.',
  columns: [
    { name: 'Chain', kind: 'title', draw: (at, row) => lines(at, plain(String(row.chain))) },
    { name: 'Verdict', draw: (at, row) => lines(at, pill(...verdict(row))) },
    { name: 'Up to id', kind: 'n', draw: (at, row) => lines(at, plain(number(row.until_id)), sub(reach(row))) },
    {
      name: 'Verified', kind: 'time',
      draw: (at, row) => lines(at, plain(row.verified_at ? ago(row.verified_at) : '', row.verified_at || ''), sub(row.verified_at ? clock(row.verified_at) : '')),
    },
    { name: 'By', kind: 'who', draw: (at, row) => lines(at, plain(row.verified_by || '')) },
  ],
});

const actedOn = (row) => `chain ${row.chain}${row.receiver ? `, ${row.receiver}` : ''}`;

const actsTable = new Table($('acts'), {
  size: 10,
  read: () => rows('acts').sort((a, b) => b.act_id - a.act_id),
  words: (row) => [actedOn(row), row.act, row.actor, row.reason],
  isBad: () => false,
  empty: () => 'No act by hand yet.',
  columns: [
    { name: 'When', kind: 'time', draw: (at, row) => lines(at, plain(clock(row.acted_at), row.acted_at)) },
    { name: 'Act', kind: 'title', draw: (at, row) => lines(at, plain(row.act), sub(actedOn(row))) },
    { name: 'Who', kind: 'who', draw: (at, row) => lines(at, plain(row.actor)) },
    { name: 'Why', draw: (at, row) => lines(at, plain(row.reason), sub(row.detail)) },
  ],
});

// -- the whole page -------------------------------------------------------------------------------

const tables = [chainsTable, receiversTable, shadowsTable, gapsTable, outboxTable, inboxesTable, verifiedTable, actsTable];

function figure(name, value, note, tone = '') {
  text($(`tile-${name}`), value);
  attribute($(`tile-${name}`), 'data-tone', tone);
  text($(`tile-${name}-note`), note);
}

function drawTiles() {
  const chains = rows('chains');
  const last = (name) => valuesOf(name).at(-1) || 0;
  const moving = chains.filter((row) => row.orders_per_second > 0).length;
  const most = Math.max(0, ...valuesOf('orders'));
  figure('orders', number(Math.round(last('orders'))), `${number(moving)} of ${plural(chains.length, 'chain')} moving; at most ${number(Math.round(most))}`);
  drawLagTile();
  const leading = chains.filter((row) => ['leads', 'steps down'].includes(row.leader_state)).length;
  const silent = chains.filter((row) => row.leader_state === 'silent').length;
  figure('leaders', `${number(leading)} of ${number(chains.length)}`, silent ? `${number(silent)} silent` : 'none is silent', silent ? 'bad' : '');
  drawOutboxTile();
  drawVerifiedTile();
  chart($('chart-orders'), 'orders', true);
  chart($('chart-lag'), 'lag', true);
}

function drawLagTile() {
  const live = rows('receivers').filter((row) => row.state !== 'halted');
  const halted = rows('receivers').length - live.length;
  const others = halted ? `; ${number(halted)} halted` : '';
  if (!live.length) return figure('lag', '–', `no receiver${others}`, halted ? 'bad' : '');
  const slowest = live.reduce((a, b) => (b.behind_seconds > a.behind_seconds ? b : a));
  const where = slowest.behind_rows
    ? `${slowest.receiver} of chain ${slowest.chain}, ${plural(slowest.behind_rows, 'order')} behind`
    : halted ? 'every other receiver is at its head' : 'every receiver is at its head';
  const tone = halted ? 'bad' : slowest.state === 'keeps up' ? '' : 'warn';
  return figure('lag', span(slowest.behind_seconds), `${where}${others}`, tone);
}

function drawOutboxTile() {
  const sum = (...statuses) => rows('outbox').filter((row) => statuses.includes(row.status))
    .reduce((total, row) => total + row.deliveries, 0);
  const dead = rows('inboxes').reduce((total, row) => total + row.dead, 0);
  if (state.absent.outbox && !dead) return figure('outbox', '–', 'not shown');
  const abnormal = sum('abnormal');
  const way = `${number(sum('init', 'confirmed', 'prepared'))} under way`;
  if (abnormal + dead) return figure('outbox', number(abnormal + dead), `${number(abnormal)} abnormal, ${number(dead)} dead, ${way}`, 'bad');
  const hasTrouble = rows('outbox').some((row) => row.trouble || row.overdue > 0);
  if (!hasTrouble && rows('outbox').some((row) => row.silent)) return figure('outbox', 'silent', way, 'warn');
  return figure('outbox', hasTrouble ? 'trouble' : 'well', way, hasTrouble ? 'bad' : 'good');
}

function drawVerifiedTile() {
  const known = rows('verified').filter((row) => row.until_id !== null);
  const broken = rows('verified').filter((row) => row.contradicted_id !== null).length;
  if (broken) return figure('verified', `${number(broken)} broken`, 'rows changed since they were verified', 'bad');
  const report = state.report && state.report.last;
  if (report && report.is_clean === false) return figure('verified', 'not clean', `last report, ${ago(report.written)}`, 'bad');
  if (!known.length) return figure('verified', '–', 'no chain was verified');
  const last = known.reduce((a, b) => (b.verified_at > a.verified_at ? b : a));
  const note = `last ${ago(last.verified_at)}`;
  const all = rows('verified').length;
  if (known.length < all) return figure('verified', `${number(known.length)} of ${plural(all, 'chain')}`, note, 'warn');
  return figure('verified', 'whole', note, 'good');
}

function drawNotices() {
  const found = rows('notices').sort((a, b) => a.key.localeCompare(b.key));
  const shown = found.slice(0, 8);
  const level = found.length ? (found.some((row) => row.level === 'bad') ? 'bad' : 'warn') : 'calm';
  attribute($('notices'), 'data-level', level);
  const title = found.length ? `${plural(found.length, 'thing needs', 'things need')} a person` : 'Nothing needs a person';
  text($('notices-title'), title);
  document.title = found.length ? `(${found.length}) orderchain console` : 'orderchain console';
  const list = $('notice-list');
  const more = found.length > shown.length ? [{ text: `and ${number(found.length - shown.length)} more`, section: 'chains' }] : [];
  const wanted = [...shown, ...more];
  while (list.children.length > wanted.length) list.lastElementChild.remove();
  wanted.forEach((row, index) => {
    const item = list.children[index] || list.appendChild(make('li', {}, make('a')));
    attribute(item.firstChild, 'href', `#${row.section}`);
    attribute(item, 'data-level', row.level || 'warn');
    text(item.firstChild, row.text);
  });
}

function drawReport() {
  const report = state.report && state.report.last;
  const node = $('report');
  node.hidden = !report;
  if (!report) return;
  if (!node.firstChild) {
    const link = make('a', { href: '/report', target: '_blank', rel: 'noopener' });
    node.append(make('span', { className: 'pill' }), ' ', link, make('span'));
  }
  const [outcome, link, written] = node.children;
  attribute(outcome, 'data-tone', report.is_clean ? 'good' : 'bad');
  text(outcome, report.is_clean ? 'clean' : 'not clean');
  outcome.hidden = report.is_clean === null; // a page that does not say it
  text(link, `Last report: ${report.title}`);
  text(written, `, written ${ago(report.written)}`);
}

function draw() {
  if (!state.about) return;
  drawNotices();
  drawTiles();
  tables.forEach((table) => table.draw());
  drawReport();
  $('shadows').hidden = !rows('shadows').length;
  $('inboxes').hidden = !rows('inboxes').length;
  const absent = state.absent.gaps || state.absent.verified;
  text($('database'), absent ? absent.why : `Database ${about().id}.`);
}

// -- the stream -----------------------------------------------------------------------------------

let source = null;
let heard = 0;

function replace(sections) {
  for (const name of Object.keys(state)) delete state[name];
  Object.assign(state, sections);
}

function apply(changed) {
  for (const [section, found] of Object.entries(changed)) {
    const kept = state[section] || (state[section] = {});
    for (const [key, fields] of Object.entries(found)) {
      if (fields === null) delete kept[key];
      else kept[key] = { ...kept[key], ...fields };
    }
  }
}

function onState() {
  heard = performance.now();
  const reader = state.feed.reader;
  if (!state.about) return say('away', `The database does not answer: ${reader.why}`);
  if (!reader.why) sample();
  draw();
  if (reader.why) return say('away', `The database does not answer: ${reader.why}. What you see is ${span(reader.old_seconds)} old.`);
  return say('live', '');
}

function say(kind, why) {
  attribute($('live'), 'data-state', kind);
  text($('live-text'), kind === 'live' ? `live, ${about().read_at.slice(11, 19)} UTC` : kind === 'away' ? 'not live' : 'connecting');
  $('away').hidden = !why;
  text($('away'), why);
}

function listen() {
  if (source) source.close();
  heard = performance.now();
  source = new EventSource('/events');
  source.addEventListener('state', (event) => {
    replace(JSON.parse(event.data));
    onState();
  });
  source.addEventListener('changes', (event) => {
    apply(JSON.parse(event.data));
    onState();
  });
  source.onerror = onBroken;
}

function since() {
  return about().read_at ? ` What you see is of ${clock(about().read_at)} UTC.` : '';
}

async function onBroken() {
  if (source.readyState !== EventSource.CLOSED) return say('away', `The console does not answer.${since()}`);
  let status = 0;
  try {
    status = (await fetch('/api/state')).status;
  } catch {
    // The next try shows it.
  }
  if (status === 401) return location.reload(); // the browser asks for the token
  say('away', status === 503 ? `The console has no room for another page.${since()}` : `The console does not answer.${since()}`);
  setTimeout(listen, 3000);
  return undefined;
}

setInterval(() => {
  const silent = (performance.now() - heard) / 1000;
  const patience = SILENT_SECONDS + 3 * refreshSeconds();
  if (source && source.readyState === EventSource.OPEN && silent > patience) {
    say('away', `The console is silent.${since()}`);
    listen();
  }
}, 5000);

$('search').addEventListener('input', draw);
$('only-bad').addEventListener('change', draw);
$('filter').addEventListener('submit', (event) => event.preventDefault());

listen();
