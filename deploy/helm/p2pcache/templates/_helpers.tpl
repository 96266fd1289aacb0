{{- define "p2pcache.labels" -}}
app.kubernetes.io/name: p2pcache
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "p2pcache.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Where a daemon finds its certificate. */}}
{{- define "p2pcache.tlsEnv" -}}
- name: P2PCACHE_TLS_CERT
  value: /etc/p2pcache/tls/tls.crt
- name: P2PCACHE_TLS_KEY
  value: /etc/p2pcache/tls/tls.key
- name: P2PCACHE_TLS_CA
  value: /etc/p2pcache/tls/ca.crt
{{- end }}

{{/* Its volume. (dict "root" $ "role" "agent" "secret" NAME-or-"" "hosts" NAMES-or-"") */}}
{{- define "p2pcache.tlsVolume" -}}
- name: tls
  {{- if .secret }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
  {{- else }}
  csi:
    driver: csi.cert-manager.io
    readOnly: true
    volumeAttributes:
      csi.cert-manager.io/issuer-name: {{ .root.Values.tls.issuer.name }}
      csi.cert-manager.io/issuer-kind: {{ .root.Values.tls.issuer.kind }}
      csi.cert-manager.io/uri-sans: p2pcache://{{ .role }}/${POD_NAME}
      {{- with .hosts }}
      csi.cert-manager.io/dns-names: {{ . }}
      {{- end }}
      csi.cert-manager.io/key-usages: digital signature,server auth,client auth
      csi.cert-manager.io/key-algorithm: ECDSA
      csi.cert-manager.io/key-size: "256"
      csi.cert-manager.io/key-encoding: PKCS8
      csi.cert-manager.io/duration: {{ .root.Values.tls.duration }}
      csi.cert-manager.io/fs-group: "10001"
  {{- end }}
{{- end }}

{{- define "p2pcache.tlsCheck" -}}
{{- if and .Values.tls.enabled (ne (empty .Values.tls.agentSecret) (empty .Values.tls.trackerSecret)) }}
{{- fail "tls: give both agentSecret and trackerSecret, or none of them to use the issuer" }}
{{- end }}
{{- end }}
