// The newest forecast of every deployment, in Node:
//   cd examples/node && npm ci && TWINCAST_BOOTSTRAP=127.0.0.1:9092 npm start
// TWINCAST_REPLAY=1 where a recording of another day is played: a forecast then ages from its making.
import { Kafka, logLevel } from 'kafkajs'

const bootstrap = process.env.TWINCAST_BOOTSTRAP ?? '127.0.0.1:9092'
const replay = Boolean(process.env.TWINCAST_REPLAY)
const kafka = new Kafka({ clientId: 'twincast-node', brokers: bootstrap.split(','), logLevel: logLevel.ERROR })
const consumer = kafka.consumer({ groupId: `twincast-node-${process.pid}-${Date.now()}` })

function ageSeconds (forecast, headers) {
  const since = replay ? Number(headers.twincast_made_us?.toString() ?? 0) : forecast.as_of_us
  return (Date.now() * 1000 - since) / 1e6
}

await consumer.connect()
await consumer.subscribe({ topic: process.env.TWINCAST_TOPIC ?? 'twincast.forecasts.v1', fromBeginning: false })
await consumer.run({
  eachMessage: async ({ message }) => {
    const forecast = JSON.parse(message.value.toString())
    const age = ageSeconds(forecast, message.headers)
    if (age >= (forecast.expires_us - forecast.as_of_us) / 1e6) return // past its time: never acted on
    const horizons = forecast.scenarios.find(s => s.scenario === 'baseline')?.horizons ?? []
    const risks = horizons.flatMap(h => h.slo_risks ?? []).map(r => r.breach_probability)
    const advice = forecast.authority !== 'advisory' && Math.max(0, ...risks) > 0.5 ? 'scale out' : 'stay'
    console.log(JSON.stringify({ deployment: forecast.deployment, phase: forecast.phase, age, advice }))
  }
})
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => consumer.disconnect().then(() => process.exit(0)))
