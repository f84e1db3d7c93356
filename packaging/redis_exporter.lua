#!lua flags=no-writes,allow-stale
-- The numbers of INFO lock and LOCK.NODE for redis_exporter: redis_exporter -script redis_exporter.lua
-- They become redis_script_values{key="lock_grants"}, {key="node_durable"} and so on.
-- The user of redis_exporter needs +eval, +info and +lock.node in addition.
-- The first line must stay the first one: without it, the server treats the script as a write, holds
-- it back while writes are paused (a failover, CLIENT PAUSE), and redis_exporter gets no reply.

local values = {}

local function add(name, value)
    values[#values + 1] = name
    values[#values + 1] = value
end

local node = redis.pcall('LOCK.NODE')
if type(node) ~= 'table' or node.err then
    -- No module, or no permission: the log of the server and redlock doctor say which.
    return {'lock_up', '0'}
end
add('lock_up', '1')

for name, value in string.gmatch(redis.call('INFO', 'lock'), '(lock_[%w_]+):(%d+)') do
    add(name, value)
end

for place = 1, #node, 2 do
    local name, value = 'node_' .. string.gsub(node[place], '-', '_'), node[place + 1]
    if type(value) == 'number' then
        add(name, string.format('%.0f', value))
    elseif name == 'node_warnings' then
        add(name, tostring(#value))
    end
end

return values
