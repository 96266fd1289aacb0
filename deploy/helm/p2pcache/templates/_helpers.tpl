{{- define "p2pcache.labels" -}}
app.kubernetes.io/name: p2pcache
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What tells this release's pods from others'. */}}
{{- define "p2pcache.selector" -}}
app.kubernetes.io/name: p2pcache
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The beginning of every object's name. */}}
{{- define "p2pcache.fullname" -}}
{{ .Values.fullnameOverride | default "p2pcache" }}
{{- end }}

{{- define "p2pcache.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* The address that a daemon listens on. (dict "root" $ "port" PORT) */}}
{{- define "p2pcache.listen" -}}
{{ ternary "[::]" "0.0.0.0" .root.Values.ipv6 }}:{{ .port }}
{{- end }}

{{/* Environment variables of a map: a number is written in full (Helm reads 1000000 as 1e+06), an object as it stands. */}}
{{- define "p2pcache.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  {{- if kindIs "map" $value }}
  {{- toYaml $value | nindent 2 }}
  {{- else if and (kindIs "float64" $value) (eq (float64 (int64 $value)) $value) }}
  value: {{ int64 $value | quote }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Where a file:// storage is mounted: the path of its URL. */}}
{{- define "p2pcache.originDir" -}}
{{ trimPrefix "file://" .Values.origin }}
{{- end }}

{{- define "p2pcache.originMount" -}}
{{- if hasPrefix "file://" .Values.origin }}
- name: origin
  mountPath: {{ include "p2pcache.originDir" . }}
{{- end }}
{{- end }}

{{- define "p2pcache.originVolume" -}}
{{- if hasPrefix "file://" .Values.origin }}
- name: origin
  {{- toYaml .Values.originVolume | nindent 2 }}
{{- end }}
{{- end }}

{{/* What can't work is refused here, not found out by a pod that crashes. */}}
{{- define "p2pcache.check" -}}
{{- include "p2pcache.tlsCheck" . }}
{{- if and (hasPrefix "file://" .Values.origin) (empty .Values.originVolume) }}
{{- fail (printf "origin %s is a directory that no pod can see: set originVolume to the volume to mount there in every pod, such as {nfs: {server: S, path: /P}}, or use s3://" .Values.origin) }}
{{- end }}
{{- if and .Values.originVolume (not (hasPrefix "file://" .Values.origin)) }}
{{- fail "originVolume is for an origin that begins with file://" }}
{{- end }}
{{- if and .Values.tls.enabled (or .Values.monitoring.podMonitor.enabled .Values.monitoring.serviceMonitor.enabled) (empty .Values.monitoring.tlsConfig) }}
{{- fail "monitoring: with tls.enabled say how Prometheus proves the tracker, such as tlsConfig: {serverName: p2pcache-tracker, ca: {secret: {name: SECRET, key: ca.crt}}}" }}
{{- end }}
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
