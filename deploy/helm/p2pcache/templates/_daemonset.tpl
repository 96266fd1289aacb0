{{/* The agents of one pool of nodes: the root's dict with "agent" (its settings) and "pool" (its name, or ""). */}}
{{- define "p2pcache.daemonset" -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ include "p2pcache.fullname" . }}-agent{{ with .pool }}-{{ . }}{{ end }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "p2pcache.labels" . | nindent 4 }}
    app.kubernetes.io/component: agent
    {{- with .pool }}
    p2pcache.io/pool: {{ . }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "p2pcache.selector" . | nindent 6 }}
      app.kubernetes.io/component: agent
      {{- with .pool }}
      p2pcache.io/pool: {{ . }}
      {{- end }}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: {{ .agent.maxUnavailable }}
  template:
    metadata:
      labels:
        {{- include "p2pcache.selector" . | nindent 8 }}
        app.kubernetes.io/component: agent
        {{- with .pool }}
        p2pcache.io/pool: {{ . }}
        {{- end }}
        {{- with .agent.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "7402"
        {{- with .agent.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "p2pcache.fullname" . }}-agent
      automountServiceAccountToken: {{ or .agent.nodeLabels (ne (print .agent.siteLabel .agent.rackLabel) "") }}
      {{- if .agent.hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      enableServiceLinks: false
      priorityClassName: {{ .Values.priorityClass.name }}
      {{- with .Values.image.pullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      terminationGracePeriodSeconds: 30  # uploads and reads get 10 s to end
      {{- with .agent.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .agent.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .agent.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001  # may read the key file; hostPath volumes aren't touched by it
        seccompProfile:
          type: RuntimeDefault
      initContainers:
        # The kubelet makes hostPath directories for root; the agent's own user shall write there.
        - name: directories
          image: {{ include "p2pcache.image" . }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          command: [chown, "10001:10001", /var/lib/p2pcache, /run/p2pcache/client{{ if and .Values.originVolume .Values.originVolume.hostPath }}, {{ include "p2pcache.originDir" . }}{{ end }}]
          securityContext:
            runAsNonRoot: false
            runAsUser: 0
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
              add: [CHOWN]
          resources:
            requests:
              cpu: 10m
              memory: 16Mi
            limits:
              memory: 64Mi
          volumeMounts:
            - name: cache
              mountPath: /var/lib/p2pcache
            - name: client
              mountPath: /run/p2pcache/client
            {{- include "p2pcache.originMount" . | nindent 12 }}
      containers:
        - name: agent
          image: {{ include "p2pcache.image" . }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          args: [agent]
          env:
            - name: POD_IP
              valueFrom:
                fieldRef:
                  fieldPath: status.podIP
            - name: P2PCACHE_NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
            - name: P2PCACHE_LISTEN
              value: {{ include "p2pcache.listen" (dict "root" . "port" 7401) | quote }}
            - name: P2PCACHE_ADVERTISE
              value: {{ ternary "[$(POD_IP)]:7401" "$(POD_IP):7401" .Values.ipv6 | quote }}
            - name: P2PCACHE_HEALTH_LISTEN
              value: {{ include "p2pcache.listen" (dict "root" . "port" 7402) | quote }}
            - name: P2PCACHE_TRACKER
              value: {{ ternary "https" "http" .Values.tls.enabled }}://{{ include "p2pcache.fullname" . }}-tracker:7400
            - name: P2PCACHE_CLUSTER_KEY_FILE
              value: /etc/p2pcache/cluster/key
            {{- if .Values.tls.enabled }}
            {{- include "p2pcache.tlsEnv" . | nindent 12 }}
            {{- end }}
            - name: P2PCACHE_LOG_FORMAT
              value: json
            {{- if .agent.nodeLabels }}
            - name: P2PCACHE_KUBERNETES_LABELS
              value: "true"
            {{- end }}
            {{- with .agent.siteLabel }}
            - name: P2PCACHE_KUBERNETES_SITE_LABEL
              value: {{ . }}
            {{- end }}
            {{- with .agent.rackLabel }}
            - name: P2PCACHE_KUBERNETES_RACK_LABEL
              value: {{ . }}
            {{- end }}
            {{- include "p2pcache.env" .agent.env | nindent 12 }}
          envFrom:
            - secretRef:
                name: {{ .Values.storageSecret }}
                optional: true
            {{- with .agent.envFrom }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: peers
              containerPort: 7401
            - name: health
              containerPort: 7402
          startupProbe:  # the first look through a full cache takes a moment
            httpGet:
              path: /healthz
              port: health
            {{- toYaml .agent.probes.startup | nindent 12 }}
          livenessProbe:
            httpGet:
              path: /healthz
              port: health
            {{- toYaml .agent.probes.liveness | nindent 12 }}
          readinessProbe:  # holds a rollout back when the new agents don't reach tracker or storage
            httpGet:
              path: /readyz
              port: health
            {{- toYaml .agent.probes.readiness | nindent 12 }}
          resources:
            {{- toYaml .agent.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          volumeMounts:
            - name: cache
              mountPath: /var/lib/p2pcache
            - name: run
              mountPath: /run/p2pcache
            - name: client
              mountPath: /run/p2pcache/client
            - name: cluster-key
              mountPath: /etc/p2pcache/cluster
              readOnly: true
            {{- if .Values.tls.enabled }}
            - name: tls
              mountPath: /etc/p2pcache/tls
              readOnly: true
            {{- end }}
            {{- include "p2pcache.originMount" . | nindent 12 }}
            {{- with .agent.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: cache
          hostPath:
            path: {{ .agent.cacheDir }}
            type: DirectoryOrCreate
        # A hostPath, because other pods of the node come in through it; an emptyDir is one pod's own.
        - name: client
          hostPath:
            path: {{ .agent.clientSocketDir }}
            type: DirectoryOrCreate
        # The operators' socket: reached by `kubectl exec`, by no other pod.
        - name: run
          emptyDir:
            medium: Memory
            sizeLimit: 1Mi
        - name: cluster-key
          secret:
            secretName: {{ .Values.clusterKeySecret }}
            defaultMode: 0440
        {{- if .Values.tls.enabled }}
        {{- include "p2pcache.tlsVolume" (dict "root" . "role" (ternary "pusher" "agent" .agent.pusher) "secret" .Values.tls.agentSecret "hosts" "") | nindent 8 }}
        {{- end }}
        {{- include "p2pcache.originVolume" . | nindent 8 }}
        {{- with .agent.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}
