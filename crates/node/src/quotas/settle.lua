-- Settles what a node holds of counters, and grants it more. One call is atomic, so all nodes together never hold more than a limit has left.
--
-- A counter is a hash: `u`, requests that are used; `t`, the time until which a bucket was refilled, or the begin of a window; and for each node
-- that holds some of the rest a field `h<node>` with requests:expiry:sequence. What a node holds is not refilled: it is used when the node says so,
-- or when its term is over. All times are milliseconds of the server's clock.
--
-- KEYS: the epoch, and for each counter: its own key, that of the counter which it shares if there is no room, and the index of the limit's keys.
-- ARGV: node, sequence, the epoch that the node knows or '', a new epoch, term, grace, counters of a limit at most; and for each counter:
--   b(ucket) or w(indow), requests, period, capacity, unused, keep, need, extra.
-- Returns the epoch, the sequence, and for each counter: held, left, until there is one more, until it is fresh, how long `held` counts, whether it is shared.

local node, sequence, known = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local term, grace, most = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Below this, a difference is rounding.
local NEXT_TO_NOTHING = 1e-9
local LONGEST_TTL = 3.2e11

local epoch = redis.call('HMGET', KEYS[1], 'id', 'lost')
local id, lost = epoch[1], tonumber(epoch[2] or '0')
if not id then
  -- A node that knows an epoch has seen counters that are not here any more.
  id = ARGV[4]
  lost = known ~= '' and now or 0
  redis.call('HSET', KEYS[1], 'id', id, 'lost', string.format('%.0f', lost))
elseif known ~= '' and known ~= id then
  lost = now
  redis.call('HSET', KEYS[1], 'lost', string.format('%.0f', lost))
end

local function window_of(limit, at)
  return at - at % limit.period
end

local function refill(counter, limit, to)
  if limit.bucket and to > counter.at then
    counter.used = math.max(0, counter.used - (to - counter.at) * limit.requests / limit.period)
    counter.at = to
  end
end

local function held_by_all(counter)
  local sum = 0
  for _, share in pairs(counter.shares) do
    sum = sum + share.held
  end
  return sum
end

-- What was lost may have been used, and shares of it may be in use for a term.
local function fresh(limit)
  local used, at = 0, now
  if limit.bucket then
    if lost > 0 then
      used, at = limit.capacity, lost + term + grace
    end
  else
    at = window_of(limit, now)
    if lost >= at then
      used = limit.capacity
    end
  end
  local counter = { used = used, at = at, shares = {} }
  refill(counter, limit, now)
  return counter
end

-- The counter as it is now; nil: there is none.
local function load(key, limit)
  local fields = redis.call('HGETALL', key)
  if #fields == 0 then
    return nil
  end
  local counter = { used = 0, at = now, shares = {} }
  local over = {}
  for index = 1, #fields, 2 do
    local field, value = fields[index], fields[index + 1]
    if field == 'u' then
      counter.used = tonumber(value)
    elseif field == 't' then
      counter.at = tonumber(value)
    else
      local held, expires, last = string.match(value, '^(%d+):(%d+):(%d+)$')
      -- Later than that, it comes from a clock that was wrong.
      expires = math.min(tonumber(expires), now + term + grace + 1000)
      local share = { held = tonumber(held), expires = expires, sequence = tonumber(last) }
      counter.shares[field] = share
      if share.expires <= now then
        over[#over + 1] = { field = field, share = share }
      end
    end
  end
  if limit.bucket then
    if counter.at - now > limit.capacity * limit.period / limit.requests + term + grace then
      counter.used, counter.at = 0, now
    end
  else
    local window = window_of(limit, now)
    if window > counter.at or counter.at - window > limit.period then
      -- Whatever was held, was held until the end of its window.
      return { used = 0, at = window, shares = {} }
    end
  end
  table.sort(over, function(a, b) return a.share.expires < b.share.expires end)
  for _, one in ipairs(over) do
    refill(counter, limit, one.share.expires)
    counter.used = counter.used + one.share.held
    counter.shares[one.field] = nil
  end
  refill(counter, limit, now)
  return counter
end

local function save(key, counter, limit)
  redis.call('DEL', key)
  local level = counter.used + held_by_all(counter)
  if level < NEXT_TO_NOTHING then
    return 0
  end
  local fields = { 'u', string.format('%.17g', counter.used), 't', string.format('%.0f', counter.at) }
  local last = math.max(now, counter.at)
  for field, share in pairs(counter.shares) do
    fields[#fields + 1] = field
    fields[#fields + 1] = string.format('%.0f:%.0f:%.0f', share.held, share.expires, share.sequence)
    last = math.max(last, share.expires)
  end
  redis.call('HSET', key, unpack(fields))
  local ttl
  if limit.bucket then
    ttl = last - now + math.ceil(level * limit.period / limit.requests)
  else
    ttl = counter.at + limit.period - now
  end
  ttl = math.min(ttl + 1000, LONGEST_TTL)
  redis.call('PEXPIRE', key, string.format('%.0f', ttl))
  return ttl
end

local function settle(own, shared, index, limit, unused, keep, need, extra)
  local counter, key, is_shared = load(own, limit), own, false
  if not counter then
    redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
    local others = load(shared, limit)
    if redis.call('ZCARD', index) >= most then
      counter, key, is_shared = others or fresh(limit), shared, true
    else
      counter = fresh(limit)
      if others then
        -- Nobody knows how much of it this counter's key has used.
        counter.used = math.max(counter.used, others.used + held_by_all(others))
        counter.at = others.at
      end
    end
  end

  local field, kept = 'h' .. node, 0
  if not is_shared then
    local mine = counter.shares[field]
    if mine then
      if sequence <= mine.sequence then
        return { 0, 0, 1, 0, 0, 0 }
      end
      unused = math.min(unused, mine.held)
      kept = math.min(keep, unused)
      counter.used = counter.used + mine.held - unused
      counter.shares[field] = nil
    end
  end

  local free = math.max(0, math.floor(limit.capacity - counter.used - held_by_all(counter) - kept + NEXT_TO_NOTHING))
  local granted
  if free >= need then
    granted = need + math.min(extra, math.floor((free - need) / 2))
  else
    granted = free
  end
  local held = kept + granted
  local ends = counter.at + limit.period
  local counts = term
  if not limit.bucket then
    counts = math.min(term, ends - now)
  end
  if held > 0 then
    local expires = now + counts + grace
    if is_shared then
      -- The shares of all keys and nodes that end within the same second are one.
      expires = math.ceil(expires / 1000) * 1000
      field = 'x' .. string.format('%.0f', expires)
      local same = counter.shares[field]
      counter.shares[field] = { held = held + (same and same.held or 0), expires = expires, sequence = 0 }
    else
      counter.shares[field] = { held = held, expires = expires, sequence = sequence }
    end
  end

  local ttl = save(key, counter, limit)
  if not is_shared then
    if ttl > 0 then
      redis.call('ZADD', index, string.format('%.0f', now + ttl), string.sub(own, -32))
      if redis.call('PTTL', index) < ttl then
        redis.call('PEXPIRE', index, string.format('%.0f', ttl))
      end
    else
      redis.call('ZREM', index, string.sub(own, -32))
    end
  end

  local level = counter.used + held_by_all(counter)
  local again, reset = ends - now, ends - now
  if limit.bucket then
    local pace = limit.period / limit.requests
    local missing = 1 - (limit.capacity - level)
    local pause = math.max(0, counter.at - now)
    reset = pause + math.ceil(level * pace)
    if missing <= counter.used then
      again = pause + math.ceil(math.max(0, missing) * pace)
    else
      -- The rest is held by nodes.
      again = term + grace
    end
  end
  local left = math.max(0, math.floor(limit.capacity - level + NEXT_TO_NOTHING))
  return { held, left, math.max(1, again), math.max(0, reset), math.max(0, counts), is_shared and 1 or 0 }
end

local results = { id, ARGV[2] }
for index = 1, (#KEYS - 1) / 3 do
  local key, at = 1 + (index - 1) * 3, 7 + (index - 1) * 8
  local function number(offset)
    return tonumber(ARGV[at + offset])
  end
  local limit = { bucket = ARGV[at + 1] == 'b', requests = number(2), period = number(3), capacity = number(4) }
  results[2 + index] = settle(
    KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], limit, number(5), number(6), number(7), number(8)
  )
end
return results
