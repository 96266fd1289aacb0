// The services of a private Sigstore on one port: certificate authority, transparency log, timestamps, identity provider.
// What they compute is @sigstore/mock's; here are HTTP, and the forms in which clients other than sigstore-js ask.
'use strict';
const crypto = require('crypto');
const http = require('http');
const canonicalize = require('canonicalize');
const pkijs = require('pkijs');
const { fulcioHandler, initializeCA, initializeCTLog, initializeTLog, initializeTSA } = require('@sigstore/mock');

const ASKED = 'https://login.example'; // whose tokens they are that a browser gets
const pair = () => crypto.generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
const base64 = (data) => Buffer.from(data).toString('base64');
const sha256 = (data) => crypto.createHash('sha256').update(data).digest('hex');

// A real Rekor stores hashes of an envelope, never the envelope; the mock stores what it is sent.
function asRekorStores(entry) {
  if (entry.kind !== 'dsse') return entry;
  const text = entry.spec.proposedContent.envelope;
  const envelope = JSON.parse(text);
  const verifier = entry.spec.proposedContent.verifiers[0];
  return {
    apiVersion: entry.apiVersion,
    kind: entry.kind,
    spec: {
      envelopeHash: { algorithm: 'sha256', value: sha256(text) },
      payloadHash: { algorithm: 'sha256', value: sha256(Buffer.from(envelope.payload, 'base64')) },
      signatures: envelope.signatures.map((one) => ({ signature: one.sig, verifier })),
    },
  };
}

function token(claims) {
  const now = Math.floor(Date.now() / 1000);
  const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const body = { aud: 'sigstore', iat: now, exp: now + 600, ...claims };
  return [part({ alg: 'none' }), part(body), ''].join('.');
}

async function main() {
  const rekorKeys = pair();
  const ctlog = await initializeCTLog(pair());
  const ca = await initializeCA(pair(), ctlog);
  const tsa = await initializeTSA(pair());
  const fulcio = fulcioHandler(ca, { strict: true });

  const server = http.createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    const body = Buffer.concat(parts);
    const url = new URL(request.url, 'http://localhost');
    const answer = (code, data, kind = 'application/json', more = {}) => {
      response.writeHead(code, { 'Content-Type': kind, ...more });
      response.end(data);
    };
    try {
      const log = await initializeTLog(base, rekorKeys);
      if (url.pathname === '/api/v2/signingCert') {
        const asked = JSON.parse(body.toString());
        const credentials = { oidcIdentityToken: request.headers.authorization.replace(/^Bearer /, '') };
        const csr = Buffer.from(asked.certificateSigningRequest, 'base64').toString();
        const done = await fulcio.fn(JSON.stringify({ credentials, certificateSigningRequest: csr }));
        answer(done.statusCode, done.response);
      } else if (url.pathname === '/api/v1/log/entries') {
        answer(201, JSON.stringify(await log.log(asRekorStores(JSON.parse(body.toString())))));
      } else if (url.pathname === '/api/v1/timestamp') {
        const asked = pkijs.TimeStampReq.fromBER(body);
        const stamp = await tsa.timestamp({
          artifactHash: Buffer.from(asked.messageImprint.hashedMessage.valueBlock.valueHexView),
          hashAlgorithmOID: asked.messageImprint.hashAlgorithm.algorithmId,
          nonce: 1,
          policyOID: '1.3.6.1.4.1.57264.2',
          certReq: asked.certReq,
        });
        answer(201, stamp, 'application/timestamp-reply');
      } else if (url.pathname === '/.well-known/openid-configuration') {
        answer(200, JSON.stringify({
          issuer: base, authorization_endpoint: `${base}/auth`, token_endpoint: `${base}/token`,
        }));
      } else if (url.pathname === '/auth') { // somebody who is logged in already
        const back = new URL(url.searchParams.get('redirect_uri'));
        back.searchParams.set('code', 'code');
        back.searchParams.set('state', url.searchParams.get('state'));
        answer(302, '', 'text/plain', { Location: back.href });
      } else if (url.pathname === '/token') {
        answer(200, JSON.stringify({ access_token: token({ iss: ASKED, sub: 'somebody@company.example' }) }));
      } else answer(404, '{}');
    } catch (error) {
      answer(500, JSON.stringify({ message: String(error) }));
    }
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  const base = `http://127.0.0.1:${server.address().port}`;

  const validFor = { start: new Date(Date.now() - 86400e3).toISOString() };
  const service = (url) => ({ url, majorApiVersion: 1, validFor, operator: 'mock' });
  const instance = (key, name) => ({
    baseUrl: `${base}/${name}`, hashAlgorithm: 'SHA2_256',
    publicKey: { rawBytes: base64(key), keyDetails: 'PKIX_ECDSA_P256_SHA_256', validFor },
    logId: { keyId: base64(crypto.createHash('sha256').update(key).digest()) },
  });
  const authority = (name, certificates) => ({
    subject: { organization: 'sigstore.mock', commonName: name }, uri: base, validFor,
    certChain: { certificates: certificates.map((one) => ({ rawBytes: base64(one) })) },
  });
  console.log(JSON.stringify({
    mediaType: 'application/vnd.dev.sigstore.clienttrustconfig.v0.1+json',
    trustedRoot: {
      mediaType: 'application/vnd.dev.sigstore.trustedroot+json;version=0.1',
      tlogs: [instance(rekorKeys.publicKey.export({ format: 'der', type: 'spki' }), 'rekor')],
      ctlogs: [instance(ctlog.publicKey, 'ct')],
      certificateAuthorities: [authority('sigstore', [ca.rootCertificate])],
      timestampAuthorities: [authority('tsa', [tsa.intCertificate, tsa.rootCertificate])],
    },
    signingConfig: {
      mediaType: 'application/vnd.dev.sigstore.signingconfig.v0.2+json',
      caUrls: [service(base)], oidcUrls: [service(base)], rekorTlogUrls: [service(base)],
      rekorTlogConfig: { selector: 'ANY' },
      tsaUrls: [service(`${base}/api/v1/timestamp`)], tsaConfig: { selector: 'ANY' },
    },
  }));
}
process.stdin.resume().on('end', () => process.exit());
main();
